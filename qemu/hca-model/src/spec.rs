//! Devices as a command line names them: a kind of card, and habits behind it, as in `cx-7,command-time=1us..5ms,boot-pages=50000`.

use crate::card::{CONNECTX_5, Card, IN_REGISTERS};
use crate::habits::CommandTime;
use crate::profile::Profile;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::{NicInterface, RegisterId};
use rdma_fabric::faults::nanoseconds;
use std::fmt;
use std::str::FromStr;

/// A kind of device, from which any number can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    text: String,
    /// Node 0 of this kind.
    model: Profile,
}

/// What is wrong with a specification, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

/// Changes a profile as the text behind `=` says; `None` when it cannot be understood.
type Turn = fn(&mut Profile, &str) -> Option<()>;

/// A habit: its name, what may stand behind it, what it does.
#[derive(Clone, Copy)]
struct Knob {
    name: &'static str,
    /// Empty where nothing may.
    value: &'static str,
    /// One that a driver can live with.
    example: &'static str,
    meaning: &'static str,
    turn: Turn,
    /// `adversarial` turns it too, to `example`.
    adversarial: bool,
}

const fn knob(
    name: &'static str,
    value: &'static str,
    example: &'static str,
    meaning: &'static str,
    turn: Turn,
) -> Knob {
    Knob { name, value, example, meaning, turn, adversarial: false }
}

/// A mistake of drivers that the card does not forgive.
const fn unforgiving(name: &'static str, meaning: &'static str, turn: Turn) -> Knob {
    Knob { adversarial: true, ..knob(name, "", "", meaning, turn) }
}

const KNOBS: &[Knob] = &[
    knob(
        "command-time",
        "TIME..TIME",
        "1us..2ms",
        "every command takes time, and they complete out of order",
        |p, text| {
            let (low, high) = text.split_once("..").unwrap_or((text, text));
            let range = (nanoseconds(low)?, nanoseconds(high)?);
            p.habits.command_time = (range.0 <= range.1).then_some(CommandTime { seed: 1, range });
            p.habits.command_time.map(drop)
        },
    ),
    knob("boot-pages", "N", "200", "pages asked for before SET_HCA_CAP", |p, text| {
        number(text).map(|n| p.boot_pages = n)
    }),
    knob("init-pages", "N", "10", "pages asked for before INIT_HCA", |p, text| {
        number(text).map(|n| p.init_pages = n)
    }),
    knob(
        "page-requests",
        "N",
        "4",
        "every command asks for so many pages more, until some are given back",
        |p, text| number(text).map(|n| p.habits.page_requests = n),
    ),
    knob("function", "N", "5", "firmware knows the function by this number", |p, text| {
        number(text).map(|n| p.habits.pages_function = n)
    }),
    knob(
        "other-function",
        "N:PAGES",
        "3:40",
        "the driver gives pages for another function too",
        |p, text| {
            let (function, pages) = text.split_once(':')?;
            let function = number(function).filter(|function| *function != 0)?;
            p.habits.other_functions.push((function, number(pages)?));
            Some(())
        },
    ),
    knob("embedded-cpu", "", "", "the driver runs on the card's own processor", |p, _| {
        p.habits.embedded_cpu = true;
        Some(())
    }),
    knob(
        "msix-in-registers",
        "",
        "",
        "the MSI-X table lies among the registers of the initialization segment",
        |p, _| {
            p.msix = IN_REGISTERS;
            Some(())
        },
    ),
    knob("nic-interface", "0|1|2", "1", "nic_interface after power-on and reset", |p, text| {
        let state = number(text).filter(|state| *state <= 2)?;
        p.habits.start_interface = Some(NicInterface(state));
        Some(())
    }),
    knob("disabled-until-enabled", "", "", "nic_interface reads 1 until ENABLE_HCA has completed", |p, _| {
        p.habits.disabled_until_enabled = true;
        Some(())
    }),
    knob(
        "no-take-over",
        "",
        "",
        "a function left enabled has to be reset before another owner enables it",
        |p, _| {
            p.habits.no_take_over = true;
            Some(())
        },
    ),
    knob(
        "initializing",
        "TIME",
        "30s",
        "how long `initializing` is set after power-on and reset",
        |p, text| nanoseconds(text).map(|time| p.habits.initializing = Some(time)),
    ),
    knob(
        "initializing-again",
        "TIME",
        "1s",
        "the same once the command queue's address is written",
        |p, text| nanoseconds(text).map(|time| p.habits.initializing_again = Some(time)),
    ),
    knob(
        "reset-time",
        "TIME",
        "2s",
        "how long registers read as all ones after a function-level reset",
        |p, text| nanoseconds(text).map(|time| p.habits.reset_time = Some(time)),
    ),
    knob("training", "TIME", "4s", "how long the link takes to come up", |p, text| {
        nanoseconds(text).map(|time| p.habits.training = Some(time))
    }),
    knob("link-follows-driver", "", "", "the link is up only between INIT_HCA and TEARDOWN_HCA", |p, _| {
        p.habits.link_follows_driver = true;
        Some(())
    }),
    knob("lid-ffff", "", "", "the LID reads 0xffff before it is set", |p, _| {
        p.habits.unset_lid_is_ffff = true;
        Some(())
    }),
    knob("grh", "", "", "every packet needs a GRH: a virtual function without a LID of its own", |p, _| {
        p.habits.grh_required = true;
        Some(())
    }),
    knob("port-state", "N", "1", "hca_vport_context.port_state, whatever the vport's is", |p, text| {
        number(text).map(|state| p.habits.port_state = Some(state))
    }),
    knob("oper-mtu", "BYTES", "4096", "pmtu_reg.oper_mtu", |p, text| {
        number(text).map(|mtu| p.habits.oper_mtu = Some(mtu))
    }),
    knob(
        "neighbour-syndrome",
        "N",
        "8",
        "a neighbour's syndrome in the health buffer that all share, without rfr",
        |p, text| number(text).map(|syndrome| p.habits.neighbour_syndrome = Some(HealthSyndrome(syndrome))),
    ),
    knob("silent-assert", "", "", "firmware that fails does not ask for a reset", |p, _| {
        p.habits.silent_assert = true;
        Some(())
    }),
    knob("refuse-register", "ID", "0x500f", "ACCESS_REG refuses this register", |p, text| {
        number(text).map(|id| p.habits.refused_registers.push(RegisterId(id)))
    }),
    knob("terminator", "KEY", "0x7700", "the key that ends a scatter list", |p, text| {
        number(text).map(|key| p.habits.terminator = Some(key))
    }),
    knob("no-atomic-byte-order", "", "", "no atomics in the host's byte order", |p, _| {
        p.habits.no_atomic_byte_order = true;
        Some(())
    }),
    knob(ADVERSARIAL, "", "", "all habits below: the card forgives no mistake of a driver", |p, _| {
        KNOBS.iter().filter(|knob| knob.adversarial).try_for_each(|knob| (knob.turn)(p, knob.example))
    }),
    unforgiving("arm-record", "a CQ arm doorbell must equal word 1 of the doorbell record", |p, _| {
        p.habits.adversary.arm_record = true;
        Some(())
    }),
    unforgiving("atomic-mode", "no atomics to a QP whose qpc.atomic_mode is 0", |p, _| {
        p.habits.adversary.atomic_mode = true;
        Some(())
    }),
    unforgiving("issi", "vport contexts, RMPs and XRC SRQs need SET_ISSI 1", |p, _| {
        p.habits.adversary.issi = true;
        Some(())
    }),
    unforgiving("page-marker", "the device fails if software writes to its pages", |p, _| {
        p.habits.adversary.page_marker = true;
        Some(())
    }),
    unforgiving("rts-doorbell", "sends posted before RTS wait for a doorbell", |p, _| {
        p.habits.adversary.rts_doorbell = true;
        Some(())
    }),
    unforgiving("umem-in-use", "DESTROY_UMEM fails while a ring lies in the memory", |p, _| {
        p.habits.adversary.umem_in_use = true;
        Some(())
    }),
    unforgiving("d3hot", "registers read as all ones in D3hot", |p, _| {
        p.habits.adversary.d3hot = true;
        Some(())
    }),
    unforgiving("blueflame", "a WQE is executed from the BlueFlame buffer if it is the next one", |p, _| {
        p.habits.adversary.blueflame = true;
        Some(())
    }),
    unforgiving("late-dma", "rings and receives are written until their queue is destroyed", |p, _| {
        p.habits.adversary.late_dma = true;
        Some(())
    }),
    unforgiving("lazy-umr", "memory keys change late, unless the next WQE is fenced", |p, _| {
        p.habits.adversary.lazy_umr = Some(1);
        Some(())
    }),
    unforgiving("eager-fetch", "doorbell record and WQE are read when the doorbell arrives", |p, _| {
        p.habits.adversary.eager_fetch = true;
        Some(())
    }),
    Knob {
        adversarial: true,
        ..knob("ack-floor", "N", "16", "acknowledgement time-outs are 4.096 us << N at least", |p, text| {
            p.habits.adversary.ack_floor = Some(number(text).filter(|exponent| *exponent < 32)?);
            Some(())
        })
    },
];

/// Turns all habits of a card that forgives no mistake.
const ADVERSARIAL: &str = "adversarial";

/// A number, decimal or hexadecimal behind `0x`.
fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    T::try_from(number).ok()
}

impl Knob {
    fn with(&self, value: &str) -> String {
        if value.is_empty() { self.name.to_owned() } else { format!("{}={value}", self.name) }
    }

    fn form(&self) -> String {
        self.with(self.value)
    }
}

impl DeviceSpec {
    /// Node `i` of this kind, counted from 0.
    #[must_use]
    pub fn profile(&self, i: u16) -> Profile {
        let Profile { node_guid, port_guid, system_image_guid, node_description, .. } =
            Profile::of(self.model.card, i);
        let mut profile =
            Profile { node_guid, port_guid, system_image_guid, node_description, ..self.model.clone() };
        if let Some(times) = &mut profile.habits.command_time {
            // Two of a kind do not go in step.
            times.seed = times.seed.wrapping_add(u64::from(i));
        }
        if let Some(seed) = &mut profile.habits.adversary.lazy_umr {
            *seed = seed.wrapping_add(u64::from(i));
        }
        profile
    }

    /// Which card it is.
    #[must_use]
    pub const fn card(&self) -> &'static Card {
        self.model.card
    }

    /// The same, its random decisions from this seed.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        if let Some(times) = &mut self.model.habits.command_time {
            times.seed = seed;
        }
        if let Some(own) = &mut self.model.habits.adversary.lazy_umr {
            *own = seed;
        }
        self
    }

    /// Makes a device of this profile forgive no mistake of a driver, as `adversarial` does on a command line.
    #[must_use]
    pub fn adversarial(mut profile: Profile) -> Profile {
        let knob = KNOBS.iter().find(|knob| knob.name == ADVERSARIAL);
        knob.and_then(|knob| (knob.turn)(&mut profile, ""));
        profile
    }

    /// All habits, each with a value that a driver can live with, for tests of all.
    pub fn habits() -> impl Iterator<Item = String> {
        KNOBS.iter().map(|knob| knob.with(knob.example))
    }

    /// All that can be said, a line each.
    #[must_use]
    pub fn help() -> String {
        let cards = Card::ALL.iter().map(|card| {
            let (major, minor, sub_minor) = card.firmware;
            format!("  {:<28}{}, firmware {major}.{minor}.{sub_minor:04}\n", card.name, card.title)
        });
        let knobs = KNOBS.iter().map(|knob| format!("  {:<28}{}\n", knob.form(), knob.meaning));
        let own = format!("  {:<28}a profile that `cargo xtask profile` made of a card\n", "FILE.profile");
        let cards: String = cards.chain([own]).collect();
        let knobs: String = knobs.collect();
        format!("cards:\n{cards}\nbehind a card, each after a comma:\n{knobs}")
    }
}

/// Returns the card of a name, or of the profile in a file if `name` has a `/` or ends with
/// `.profile`.
fn card(name: &str) -> Result<&'static Card, SpecError> {
    if name.contains('/') || name.ends_with(".profile") {
        let text = std::fs::read_to_string(name);
        let text = text.map_err(|error| SpecError(format!("cannot read the profile `{name}`: {error}")))?;
        let card = Card::parse(&text).map_err(|why| SpecError(format!("profile `{name}`: {why}")))?;
        return Ok(Box::leak(Box::new(card)));
    }
    Card::named(name).ok_or_else(|| {
        let cards: Vec<&str> = Card::ALL.iter().map(|card| card.name).collect();
        SpecError(format!("no card is called `{name}`: there are {}", cards.join(", ")))
    })
}

impl Default for DeviceSpec {
    fn default() -> Self {
        Self { text: CONNECTX_5.name.to_owned(), model: Profile::node(0) }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut words = text.split(',').map(str::trim);
        let name = words.next().unwrap_or_default();
        let card = card(name)?;
        let mut model = Profile::of(card, 0);
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let Some(knob) = KNOBS.iter().find(|knob| knob.name == name) else {
                return Err(SpecError(format!(
                    "no card does `{name}`: `help` in place of the card lists what there is"
                )));
            };
            let wrong = || SpecError(format!("`{word}` is not of the form `{}`", knob.form()));
            if value.is_empty() != knob.value.is_empty() {
                return Err(wrong());
            }
            (knob.turn)(&mut model, value).ok_or_else(wrong)?;
        }
        Ok(Self { text: text.to_owned(), model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<DeviceSpec>().expect_err("wrong").to_string()
    }

    #[test]
    fn a_card_and_its_habits() {
        let spec: DeviceSpec = "cx-7,command-time=1us..5ms,boot-pages=50000,other-function=3:100,lid-ffff"
            .parse()
            .expect("right");
        assert_eq!((spec.card().device_id, spec.to_string().len()), (0x1021, 73));
        let profile = spec.clone().seeded(9).profile(2);
        assert_eq!(profile.port_guid, Profile::port_guid_of(2));
        assert_eq!(profile.node_description, "emulated ConnectX-7 2");
        assert_eq!(profile.boot_pages, 50_000);
        assert_eq!(profile.habits.command_time, Some(CommandTime { seed: 11, range: (1_000, 5_000_000) }));
        assert_eq!(profile.habits.other_functions, [(3, 100)]);
        assert_eq!(DeviceSpec::default().profile(4), Profile::node(4));
        assert_eq!("cx-5".parse(), Ok(DeviceSpec::default()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(
            refused("cx-9"),
            "no card is called `cx-9`: there are cx-4, cx-5, cx-5-en, cx-6, cx-6-dx, cx-7, cx-7-en, vf"
        );
        assert!(refused("cx-5,speed=9").starts_with("no card does `speed`: "));
        for (text, form) in [
            ("boot-pages=many", "boot-pages=N"),
            ("boot-pages", "boot-pages=N"),
            ("lid-ffff=1", "lid-ffff"),
            ("command-time=5ms..1ms", "command-time=TIME..TIME"),
            ("command-time=5", "command-time=TIME..TIME"),
            ("other-function=0:5", "other-function=N:PAGES"),
            ("nic-interface=7", "nic-interface=0|1|2"),
        ] {
            assert_eq!(refused(&format!("cx-5,{text}")), format!("`{text}` is not of the form `{form}`"));
        }
    }

    #[test]
    fn every_habit_is_in_the_help_and_changes_something() {
        let help = DeviceSpec::help();
        for knob in KNOBS {
            assert!(help.contains(knob.name));
            let spec: DeviceSpec = format!("cx-5,{}", knob.with(knob.example)).parse().expect("right");
            assert_ne!(spec.profile(0), Profile::node(0), "{}", knob.name);
        }
    }
}
