//! What can go wrong with a packet on its way, and how often.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::cuts::Cuts;

/// One million: 100 %.
const ALL: u32 = 1_000_000;

/// Rates of the injected faults, each in millionths of all packets, and the range of injected delays.
///
/// Written as a list such as `loss=1%,dup=1%,reorder=1%,corrupt=0.1%,delay=10us..1ms,ecn=16,cuts=20/1000..5000/100ms..5s`
/// ([`Cuts`] explains the last); an empty string or `none` means no faults. [`Display`](fmt::Display) prints the same form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets that vanish.
    pub loss: u32,
    /// Packets that arrive twice.
    pub dup: u32,
    /// Packets that later ones overtake.
    pub reorder: u32,
    /// Packets of which one bit changes.
    pub corrupt: u32,
    /// Nanoseconds, shortest and longest, that each packet takes beyond the link's latency.
    pub delay: Option<(u64, u64)>,
    /// On Ethernet: frames in a port's queue from which number on further ones are marked as congested, if
    /// their senders support it.
    pub ecn: Option<u32>,
    /// Links that are cut.
    pub cuts: Option<Cuts>,
}

impl Faults {
    /// Whether no fault can happen.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a fault specification was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultsError {
    /// An item is not of the form `name=value`.
    NoValue(String),
    /// The name is not `loss`, `dup`, `reorder`, `corrupt`, `delay`, `ecn` or `cuts`.
    Unknown(String),
    /// The name was given before.
    Twice(String),
    /// The value is not a percentage between `0%` and `100%` with at most four decimals.
    Percentage(String),
    /// The value is not a time or a range of times such as `10us..1ms`.
    Time(String),
    /// The value is not a number of frames.
    Frames(String),
    /// The range ends before it begins.
    EmptyRange(String),
    /// The value does not say how often links are cut, after how many packets, and for how long.
    Cuts(String),
}

impl fmt::Display for FaultsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValue(item) => write!(f, "fault `{item}`: expected `name=value`, as in `loss=1%`"),
            Self::Unknown(name) => {
                write!(
                    f,
                    "unknown fault `{name}`: there are loss, dup, reorder, corrupt, delay, ecn and cuts"
                )
            }
            Self::Twice(name) => write!(f, "fault `{name}` is given twice"),
            Self::Percentage(value) => {
                write!(f, "`{value}` is not a percentage from 0% to 100% with at most four decimals")
            }
            Self::Time(value) => {
                write!(
                    f,
                    "`{value}` is not a time of at most 10s such as `10us`, or a range such as `10us..1ms`"
                )
            }
            Self::Frames(value) => write!(f, "`{value}` is not a number of frames such as `16`"),
            Self::EmptyRange(value) => write!(f, "the range `{value}` ends before it begins"),
            Self::Cuts(value) => {
                write!(
                    f,
                    "`{value}` is not of the form `20/1000..5000/100ms..5s`: how many cuts, packets from one to the next, time of each"
                )
            }
        }
    }
}

impl std::error::Error for FaultsError {}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(spec: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::default();
        let spec = spec.trim();
        if spec.is_empty() || spec == "none" {
            return Ok(faults);
        }
        let mut seen: Vec<&str> = Vec::new();
        for item in spec.split(',') {
            let item = item.trim();
            let (name, value) = item.split_once('=').ok_or_else(|| FaultsError::NoValue(item.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(FaultsError::Twice(name.to_owned()));
            }
            seen.push(name);
            match name {
                "loss" => faults.loss = percentage(value)?,
                "dup" => faults.dup = percentage(value)?,
                "reorder" => faults.reorder = percentage(value)?,
                "corrupt" => faults.corrupt = percentage(value)?,
                "delay" => faults.delay = Some(range(value)?),
                "ecn" => faults.ecn = Some(value.parse().map_err(|_| FaultsError::Frames(value.to_owned()))?),
                "cuts" => faults.cuts = Some(cuts(value)?),
                _ => return Err(FaultsError::Unknown(name.to_owned())),
            }
        }
        Ok(faults)
    }
}

/// Millionths of a percentage such as `0.25%`.
fn percentage(value: &str) -> Result<u32, FaultsError> {
    let wrong = || FaultsError::Percentage(value.to_owned());
    let number = value.strip_suffix('%').ok_or_else(wrong)?.trim();
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let no_digit = whole.is_empty() && decimals.is_empty();
    if no_digit || whole.len() > 3 || decimals.len() > 4 || !digits(whole) || !digits(decimals) {
        return Err(wrong());
    }
    let parse = |text: &str| if text.is_empty() { Ok(0) } else { text.parse::<u32>().map_err(|_| wrong()) };
    let scale = 10u32.pow(4 - decimals.len() as u32);
    let ppm = parse(whole)? * 10_000 + parse(decimals)? * scale;
    if ppm > ALL { Err(wrong()) } else { Ok(ppm) }
}

/// Nanoseconds of a range of times, or of one time.
fn range(value: &str) -> Result<(u64, u64), FaultsError> {
    let wrong = || FaultsError::Time(value.to_owned());
    let (low, high) = match value.split_once("..") {
        Some((low, high)) => (time(low).ok_or_else(wrong)?, time(high).ok_or_else(wrong)?),
        None => {
            let at = time(value).ok_or_else(wrong)?;
            (at, at)
        }
    };
    if low > high {
        return Err(FaultsError::EmptyRange(value.to_owned()));
    }
    Ok((low, high))
}

/// Cuts such as `20/1000..5000/100ms..5s`.
fn cuts(value: &str) -> Result<Cuts, FaultsError> {
    let wrong = || FaultsError::Cuts(value.to_owned());
    let mut parts = value.split('/');
    let (Some(count), Some(packets), Some(times), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(wrong());
    };
    let count = count.trim().parse().map_err(|_| wrong())?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let packets = match packets.split_once("..") {
        Some((least, most)) => (number(least)?, number(most)?),
        None => (number(packets)?, number(packets)?),
    };
    if packets.0 > packets.1 {
        return Err(FaultsError::EmptyRange(value.to_owned()));
    }
    Ok(Cuts { count, packets, time: range(times.trim())? })
}

/// Nanoseconds of a time such as `10us`; `None` when it is none, or longer than any link would hold a packet.
fn time(text: &str) -> Option<u64> {
    nanoseconds(text).filter(|ns| *ns <= 10_000_000_000)
}

/// Nanoseconds of a time of any length.
pub fn nanoseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let scale = match unit.trim() {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(scale)
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        let mut comma = "";
        let rates =
            [("loss", self.loss), ("dup", self.dup), ("reorder", self.reorder), ("corrupt", self.corrupt)];
        for (name, ppm) in rates.into_iter().filter(|(_, ppm)| *ppm != 0) {
            write!(f, "{comma}{name}={}", ppm / 10_000)?;
            let decimals = ppm % 10_000;
            if decimals != 0 {
                let text = format!("{decimals:04}");
                write!(f, ".{}", text.trim_end_matches('0'))?;
            }
            f.write_str("%")?;
            comma = ",";
        }
        let show = |ns: u64| match ns {
            ns if ns % 1_000 != 0 => format!("{ns}ns"),
            ns if ns % 1_000_000 != 0 => format!("{}us", ns / 1_000),
            ns => format!("{}ms", Duration::from_nanos(ns).as_millis()),
        };
        if let Some((low, high)) = self.delay {
            write!(f, "{comma}delay={}..{}", show(low), show(high))?;
            comma = ",";
        }
        if let Some(frames) = self.ecn {
            write!(f, "{comma}ecn={frames}")?;
            comma = ",";
        }
        if let Some(Cuts { count, packets: (least, most), time: (low, high) }) = self.cuts {
            write!(f, "{comma}cuts={count}/{least}..{most}/{}..{}", show(low), show(high))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_form() {
        let spec =
            "loss=1%,dup=1%,reorder=1%,corrupt=0.1%,delay=10us..1ms,ecn=16,cuts=20/1000..5000/100ms..5000ms";
        let faults = Faults {
            loss: 10_000,
            dup: 10_000,
            reorder: 10_000,
            corrupt: 1_000,
            delay: Some((10_000, 1_000_000)),
            ecn: Some(16),
            cuts: Some(Cuts { count: 20, packets: (1000, 5000), time: (100_000_000, 5_000_000_000) }),
        };
        assert_eq!(spec.parse(), Ok(faults));
        assert_eq!(faults.to_string(), spec);
        assert_eq!(
            " loss = 0.0001 % , delay=5us ".parse(),
            Ok(Faults { loss: 1, delay: Some((5_000, 5_000)), ..Faults::default() })
        );
        assert_eq!("loss=.5%".parse::<Faults>().map(|f| f.loss), Ok(5_000));
        assert_eq!("".parse(), Ok(Faults::default()));
        assert_eq!("none".parse(), Ok(Faults::default()));
        assert_eq!(Faults::default().to_string(), "none");
    }

    #[test]
    fn wrong_specifications_say_what_is_wrong() {
        for (spec, text) in [
            ("loss", "fault `loss`: expected `name=value`, as in `loss=1%`"),
            ("los=1%", "unknown fault `los`: there are loss, dup, reorder, corrupt, delay, ecn and cuts"),
            ("loss=1%,loss=2%", "fault `loss` is given twice"),
            ("loss=1", "`1` is not a percentage from 0% to 100% with at most four decimals"),
            ("loss=100.0001%", "`100.0001%` is not a percentage from 0% to 100% with at most four decimals"),
            ("loss=%", "`%` is not a percentage from 0% to 100% with at most four decimals"),
            ("loss=1.00001%", "`1.00001%` is not a percentage from 0% to 100% with at most four decimals"),
            ("loss=-1%", "`-1%` is not a percentage from 0% to 100% with at most four decimals"),
            ("delay=5", "`5` is not a time of at most 10s such as `10us`, or a range such as `10us..1ms`"),
            (
                "delay=11s",
                "`11s` is not a time of at most 10s such as `10us`, or a range such as `10us..1ms`",
            ),
            ("delay=2ms..1ms", "the range `2ms..1ms` ends before it begins"),
            ("ecn=many", "`many` is not a number of frames such as `16`"),
            ("cuts=1/2..1/1ms", "the range `1/2..1/1ms` ends before it begins"),
            (
                "cuts=1/2",
                "`1/2` is not of the form `20/1000..5000/100ms..5s`: how many cuts, packets from one to the next, time of each",
            ),
            ("cuts=1/2/3", "`3` is not a time of at most 10s such as `10us`, or a range such as `10us..1ms`"),
            ("loss=1%,", "fault ``: expected `name=value`, as in `loss=1%`"),
        ] {
            assert_eq!(spec.parse::<Faults>().map_err(|e| e.to_string()), Err(text.to_owned()));
        }
    }
}
