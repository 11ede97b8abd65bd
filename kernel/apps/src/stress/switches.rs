//! rds-stress's switches, with commas in place of the spaces between them: `-q1K,-d8,-t4,-T10,--rdma-use-once=1`.

use core::fmt;

use super::options::Options;

/// A switch that is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSwitch<'a>(pub &'a str);

impl fmt::Display for BadSwitch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no switch of rds-stress that is known here: -qBYTES -aBYTES -dDEPTH -tTASKS -TSECONDS -DBYTES -IPIECES -MMODE -pPORT \
             -QTOS -o -c -v -z --rdma-use-once=0|1 --rdma-use-get-mr=0|1 --rdma-use-fence=0|1 --rdma-cache-mrs=0|1 \
             --rdma-alignment=BYTES --use-cong-monitor=0|1, with commas between them",
            self.0
        )
    }
}

impl core::error::Error for BadSwitch<'_> {}

/// A number, perhaps with a K, M or G behind it, which fits.
fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (text.get(..at)?, 10),
        (at, 'm' | 'M') => (text.get(..at)?, 20),
        (at, 'g' | 'G') => (text.get(..at)?, 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    T::try_from(number.checked_mul(1 << shift)?).ok()
}

/// 0 or 1.
fn choice(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

impl Options {
    /// The defaults and these switches, and whether `-c` asks for the processor's share.
    ///
    /// # Errors
    /// [`BadSwitch`], the first.
    pub fn from_switches(text: &str) -> Result<(Self, bool), BadSwitch<'_>> {
        let mut options = Self::DEFAULT;
        let (mut cpu, mut once, mut get_mr) = (false, None, None);
        for switch in text.split(',').filter(|switch| !switch.is_empty()) {
            let understood = match switch.strip_prefix("--").and_then(|long| long.split_once('=')) {
                Some(("rdma-use-once", value)) => choice(value).map(|on| once = Some(on)),
                Some(("rdma-use-get-mr", value)) => choice(value).map(|on| get_mr = Some(on)),
                Some(("rdma-use-fence", value)) => choice(value).map(|on| options.fence = on),
                Some(("rdma-cache-mrs", value)) => choice(value).map(|on| options.cache_mrs = on),
                Some(("use-cong-monitor", value)) => choice(value).map(|on| options.congestion_monitor = on),
                Some(("rdma-alignment", value)) => number(value).map(|bytes| options.alignment = bytes),
                Some(_) => None,
                None => options.take_short(switch, &mut cpu),
            };
            understood.ok_or(BadSwitch(switch))?;
        }
        options.use_once = once.unwrap_or(false);
        options.use_get_mr = get_mr.unwrap_or(options.cache_mrs);
        // Memory that is offered once cannot stay, and what stays has to be registered by a call.
        if options.cache_mrs && (options.use_once || !options.use_get_mr) {
            return Err(BadSwitch("--rdma-cache-mrs=1"));
        }
        Ok((options, cpu))
    }

    fn take_short(&mut self, switch: &str, cpu: &mut bool) -> Option<()> {
        let (name, value) = switch.split_at_checked(2)?;
        match (name, value) {
            ("-o", "") => self.simplex = true,
            ("-c", "") => *cpu = true,
            ("-v", "") => self.verify = true,
            ("-z", "") => self.summary_only = true,
            ("-q", _) => self.request_len = number(value)?,
            ("-a", _) => self.ack_len = number(value)?,
            ("-d", _) => self.depth = number(value)?,
            ("-t", _) => self.tasks = number(value)?,
            ("-T", _) => self.seconds = number(value)?,
            ("-D", _) => self.rdma_len = number(value)?,
            ("-I", _) => self.vector = number(value)?,
            ("-M", _) => self.direction = number(value)?,
            ("-p", _) => self.port = number(value)?,
            ("-Q", _) => self.tos = number(value)?,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_understood() {
        let (options, cpu) = Options::from_switches(
            "-q4K,-a64,-d8,-t2,-T10,-D1M,-I2,-M1,-p4100,-Q3,-o,-c,-v,-z,--rdma-use-fence=0",
        )
        .unwrap();
        assert!(cpu);
        assert_eq!(
            options,
            Options {
                request_len: 4096,
                ack_len: 64,
                depth: 8,
                tasks: 2,
                seconds: 10,
                rdma_len: 1 << 20,
                vector: 2,
                direction: 1,
                port: 4100,
                tos: 3,
                simplex: true,
                verify: true,
                summary_only: true,
                fence: false,
                ..Options::DEFAULT
            }
        );
        assert_eq!(Options::from_switches(""), Ok((Options::DEFAULT, false)));
        let (options, _) = Options::from_switches("--rdma-cache-mrs=1").unwrap();
        assert!(options.cache_mrs && options.use_get_mr && !options.use_once);
    }

    #[test]
    fn others_are_named() {
        for bad in [
            "-x",
            "-q",
            "-qx",
            "q",
            "-",
            "--",
            "--what=1",
            "-t70000",
            "-d-1",
            "--rdma-use-once=2",
            "-o1",
            "-é",
        ] {
            assert_eq!(Options::from_switches(bad), Err(BadSwitch(bad)));
        }
        assert!(Options::from_switches("--rdma-cache-mrs=1,--rdma-use-once=1").is_err());
        assert!(Options::from_switches("-x").unwrap_err().to_string().contains("`-x`"));
    }

    extern crate std;
    use std::string::ToString;
}
