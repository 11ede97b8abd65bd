//! Description of a Linux guest: its image and its machine. Also parsed from words such as
//! `kernel=6.12 packages=fio vcpus=2 iommu`.

use super::image::Image;
use super::recipe::{Kernel, Recipe};
use crate::error::{Error, IoContext, Result};
use hca_model::DeviceSpec;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A kind of guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// Contents of its image.
    pub recipe: Recipe,
    /// Card and quirks of each of its emulated HCAs.
    pub hcas: Vec<DeviceSpec>,
    /// Number of processors.
    pub cpus: u32,
    /// Memory in MiB; `None` for the amount that the image needs.
    pub memory_mib: Option<u32>,
    /// Adds an IOMMU between its devices and its memory.
    pub iommu: bool,
    /// Adds a virtio-net device on the Ethernet switch, for an RDMA device of Linux's `rdma_rxe`.
    pub rxe: bool,
}

impl From<Recipe> for Kind {
    fn from(recipe: Recipe) -> Self {
        Self {
            recipe,
            hcas: vec![DeviceSpec::default()],
            cpus: 1,
            memory_mib: None,
            iommu: false,
            rxe: false,
        }
    }
}

impl From<Kernel> for Kind {
    fn from(kernel: Kernel) -> Self {
        Recipe::new(kernel).into()
    }
}

/// The memory of a guest with a small image, in MiB.
const MEMORY_MIB: u32 = 1024;

impl Kind {
    /// Returns the memory in MiB of a guest that boots `image`. The kernel has the initramfs twice
    /// while unpacking. Programs need memory too: rdma-core's tests create the largest completion
    /// queue.
    ///
    /// # Errors
    /// The image's size cannot be read.
    pub fn memory_for(&self, image: &Image) -> Result<u32> {
        if let Some(memory) = self.memory_mib {
            return Ok(memory);
        }
        let bytes = image.initramfs.metadata().context("cannot read", &image.initramfs)?.len();
        let twice = u32::try_from((bytes >> 20) * 2).unwrap_or(u32::MAX);
        Ok(MEMORY_MIB.max(twice.saturating_add(MEMORY_MIB / 4 * 3).next_multiple_of(512)))
    }
}

/// Guests of one kind, as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Kind of the guests.
    pub kind: Kind,
    /// Number of guests.
    pub count: usize,
}

/// Range of each count.
const GUESTS: RangeInclusive<u32> = 1..=16;
const HCAS: RangeInclusive<u32> = 0..=8;
const CPUS: RangeInclusive<u32> = 1..=64;
const MEMORY: RangeInclusive<u32> = 256..=1 << 20;

/// A word of `--linux`.
pub struct Word {
    /// The word as the help lists it, such as `count=N`.
    pub form: &'static str,
    /// Its meaning, with the default in parentheses.
    pub meaning: &'static str,
    take: fn(&mut Words, &str) -> Result<()>,
}

impl Word {
    const fn new(
        form: &'static str,
        meaning: &'static str,
        take: fn(&mut Words, &str) -> Result<()>,
    ) -> Self {
        Self { form, meaning, take }
    }

    /// Returns the part before `=`.
    fn name(&self) -> &'static str {
        self.form.split_once('=').map_or(self.form, |(name, _)| name)
    }

    fn has_value(&self) -> bool {
        self.form.contains('=')
    }
}

/// Words that have been taken so far.
struct Words {
    count: usize,
    kernel: Kernel,
    packages: Vec<String>,
    modules: Vec<String>,
    files: Vec<String>,
    hcas: Option<usize>,
    profile: DeviceSpec,
    cpus: u32,
    memory_mib: Option<u32>,
    iommu: bool,
    rxe: bool,
}

/// All words.
pub const WORDS: &[Word] = &[
    Word::new("count=N", "so many of them (1)", |words, value| {
        words.count = number("count", value, GUESTS)? as usize;
        Ok(())
    }),
    Word::new(
        "kernel=NAME",
        "6.1 (Debian 12's), 6.12 (Debian 13's) or backports (the latest for Debian 13) (6.1)",
        |words, value| {
            words.kernel = value.parse()?;
            Ok(())
        },
    ),
    Word::new(
        "packages=A,B",
        "with Debian packages beside rdma-core, perftest and infiniband-diags",
        |words, value| {
            words.packages.extend(list(value));
            Ok(())
        },
    ),
    Word::new(
        "modules=A,B",
        "with kernel modules beside mlx5, IP over InfiniBand, RDMA-CM and RDS",
        |words, value| {
            words.modules.extend(list(value));
            Ok(())
        },
    ),
    Word::new(
        "files=/A,/B",
        "with files and folders of packages that are left out, as documentation is",
        |words, value| {
            words.files.extend(list(value));
            Ok(())
        },
    ),
    Word::new("hcas=N", "emulated HCAs of each (1; 0 beside rxe)", |words, value| {
        words.hcas = Some(number("hcas", value, HCAS)? as usize);
        Ok(())
    }),
    Word::new("profile=CARD,HABIT", "what these are (cx-5); `serve --help` lists all", |words, value| {
        words.profile = value.parse().map_err(|error| Error::Usage(format!("profile={value}: {error}")))?;
        Ok(())
    }),
    Word::new("vcpus=N", "processors of each (1)", |words, value| {
        words.cpus = number("vcpus", value, CPUS)?;
        Ok(())
    }),
    Word::new("memory=MIB", "memory of each (what the image needs, 1024 at least)", |words, value| {
        words.memory_mib = Some(number("memory", value, MEMORY)?);
        Ok(())
    }),
    Word::new("iommu", "with an IOMMU, so that the guest can hand its HCA on", |words, _| {
        words.iommu = true;
        Ok(())
    }),
    Word::new("rxe", "with RDMA by software, on a virtio-net device at the Ethernet switch", |words, _| {
        words.rxe = true;
        Ok(())
    }),
];

fn list(value: &str) -> impl Iterator<Item = String> {
    value.split(',').filter(|part| !part.is_empty()).map(str::to_owned)
}

impl FromStr for Group {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut words = Words {
            count: 1,
            kernel: Kernel::V6_1,
            packages: Vec::new(),
            modules: Vec::new(),
            files: Vec::new(),
            hcas: None,
            profile: DeviceSpec::default(),
            cpus: 1,
            memory_mib: None,
            iommu: false,
            rxe: false,
        };
        for word in split(text) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            let known =
                WORDS.iter().find(|known| known.name() == name && known.has_value() == value.is_some());
            let known = known.ok_or_else(|| {
                let forms = WORDS.iter().map(|word| word.form).collect::<Vec<_>>().join(" ");
                Error::Usage(format!("`{word}` is unknown; there are {forms}"))
            })?;
            (known.take)(&mut words, value.unwrap_or_default())?;
        }
        let Words { count, kernel, packages, modules, files, hcas, profile, cpus, memory_mib, iommu, rxe } =
            words;
        let recipe = Recipe::new(kernel).with_packages(packages)?.with_modules(modules)?.with_files(files)?;
        let hcas = vec![profile; hcas.unwrap_or(usize::from(!rxe))];
        Ok(Self { kind: Kind { recipe, hcas, cpus, memory_mib, iommu, rxe }, count })
    }
}

/// Splits words at spaces, and at commas before the name of a word. Other commas are those of a
/// list or a profile.
fn split(words: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        for (number, part) in word.split(',').enumerate() {
            let begins = match part.split_once('=') {
                Some((name, _)) => WORDS.iter().any(|word| word.has_value() && word.name() == name),
                None => WORDS.iter().any(|word| word.form == part),
            };
            match found.last_mut() {
                Some(last) if number > 0 && !begins => last.extend([",", part]),
                _ => found.push(part.to_owned()),
            }
        }
    }
    found
}

fn number(name: &str, value: &str, range: RangeInclusive<u32>) -> Result<u32> {
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let (first, last) = (range.start(), range.end());
        Error::Usage(format!("{name}={value} is no number from {first} to {last}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_a_guest_is() {
        let group: Group =
            "count=2 kernel=backports packages=qperf,fio packages=nvme-cli modules=nvme-rdma hcas=2 profile=cx-7 vcpus=4 memory=2048 iommu"
                .parse()
                .expect("right words");
        let recipe =
            Recipe::new(Kernel::Backports).with_packages(["fio", "nvme-cli", "qperf"]).expect("names");
        let recipe = recipe.with_modules(["nvme_rdma"]).expect("a name");
        let hcas = vec!["cx-7".parse().expect("a card"); 2];
        let kind = Kind { hcas, cpus: 4, memory_mib: Some(2048), iommu: true, ..recipe.into() };
        assert_eq!(group, Group { kind, count: 2 });
        let commas: Group = "count=2,kernel=backports,packages=qperf,fio,nvme-cli,modules=nvme-rdma,hcas=2,profile=cx-7,vcpus=4,memory=2048,iommu"
            .parse()
            .expect("right words");
        assert_eq!(commas, group);
        let quirks = split("profile=cx-7,command-time=1us..5ms,lid-ffff,hcas=2 iommu");
        assert_eq!(quirks, ["profile=cx-7,command-time=1us..5ms,lid-ffff", "hcas=2", "iommu"]);
        let plain: Group = "".parse().expect("no words");
        assert_eq!(plain, Group { kind: Kernel::V6_1.into(), count: 1 });
    }

    #[test]
    fn each_wrong_word_is_named() {
        for (words, named) in [
            ("cpus=2", "`cpus=2` is unknown; there are count=N kernel=NAME"),
            ("iommu=no", "`iommu=no` is unknown"),
            ("vcpus=0", "vcpus=0 is no number from 1 to 64"),
            ("vcpus=many", "vcpus=many is no number"),
            ("count=99", "count=99 is no number from 1 to 16"),
            ("memory=16", "memory=16 is no number from 256"),
            ("kernel=5.10", "unknown kernel 5.10"),
            ("packages=Perl", "`Perl` is no name of a package"),
            ("modules=a/b", "`a/b` is no name of a kernel module"),
            ("profile=cx-9", "profile=cx-9: "),
            ("files=etc", "`etc` is no name of a file"),
        ] {
            let refused = words.parse::<Group>().expect_err(words).to_string();
            assert!(refused.contains(named), "{words}: {refused}");
        }
    }
}
