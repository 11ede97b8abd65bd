//! Linux guests on one fabric of emulated HCAs, with spare HCAs for unikernels.

use super::guest::{Guest, Options as GuestOptions};
use super::image::{self, Image};
use super::kind::Kind;
use super::network::{self, Hub};
use super::overlay::Settings;
use super::program;
use crate::error::{Error, Result};
use crate::process::Temporary;
use crate::serve::serve;
use crate::setup::Qemu;
use hca_model::DeviceSpec;
use hca_model::log::Level;
use hca_serve::link::Address;
use hca_serve::{LogSink, Served, Summary};
use rdma_fabric::faults::Faults;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Set-up of a lab.
#[derive(Debug, Clone)]
pub struct Options {
    /// The guests.
    pub guests: Vec<Kind>,
    /// Card and quirks of the spare HCAs.
    pub spare_kind: DeviceSpec,
    /// Number of HCAs in addition to those of the guests, for unikernels.
    pub spare: usize,
    /// C files of this project, compiled at the start.
    pub programs: Vec<PathBuf>,
    /// Existing programs, linked statically.
    pub binaries: Vec<PathBuf>,
    /// File for all packets, in pcapng.
    pub capture: Option<PathBuf>,
    /// Packet faults to inject.
    pub faults: Faults,
    /// Seed of the faults.
    pub seed: u64,
    /// Starts no subnet manager on the fabric, because a guest runs one.
    pub no_subnet_manager: bool,
    /// Disables the protection by the fabric's subnet manager: every guest may configure the switch
    /// and all ports.
    pub open_fabric: bool,
    /// Serves the last guest's HCAs from a second server, which joins the fabric of the first.
    pub joined: Option<Cable>,
    /// Makes the HCAs reject everything that the PRM calls reserved or illegal. Linux does nothing
    /// of the kind.
    pub strict: bool,
    /// Sends RC requests between the HCAs as packets even if no packets are observed.
    pub packets_only: bool,
    /// QEMU's accelerator.
    pub accelerator: String,
    /// Time limit for a guest to boot.
    pub boot_limit: Duration,
    /// Prints the output of guests and HCAs on arrival.
    pub show: bool,
}

impl Options {
    /// Returns options for `count` guests of the same kind.
    pub fn new(kind: impl Into<Kind>, count: usize) -> Self {
        Self::of(vec![kind.into(); count])
    }

    /// Returns options for these guests, without spare HCAs or programs.
    pub fn of(guests: Vec<Kind>) -> Self {
        Self {
            guests,
            spare_kind: DeviceSpec::default(),
            spare: 0,
            programs: Vec::new(),
            binaries: Vec::new(),
            capture: None,
            faults: Faults::default(),
            seed: 1,
            strict: true,
            packets_only: false,
            no_subnet_manager: false,
            open_fabric: false,
            joined: None,
            accelerator: "tcg".into(),
            boot_limit: Duration::from_secs(180),
            show: false,
        }
    }
}

/// A connection between two servers.
#[derive(Debug, Clone)]
pub struct Cable {
    /// Address at which the first server listens.
    pub listen: Address,
    /// Address to which the second server connects: the same, or that of a relay in between.
    pub uplink: Address,
}

/// Guests on one fabric. Dropping it stops guests and servers.
#[derive(Debug)]
pub struct Lab {
    // Drop order: guests before the servers that they are connected to.
    guests: Vec<Option<Guest>>,
    hub: Option<Hub>,
    served: Served,
    /// Second server, which joined the first.
    far: Option<Served>,
    sockets: Vec<PathBuf>,
    qemu: Qemu,
    /// Image of each guest.
    images: Vec<Image>,
    programs: Vec<PathBuf>,
    options: Options,
    complaints: Arc<Mutex<Vec<String>>>,
    folder: Temporary,
}

impl Lab {
    /// Serves the HCAs, boots the guests and waits until all accept scripts.
    ///
    /// # Errors
    /// - [`Error::Missing`]: Debian packages or a compiler are unavailable.
    /// - The HCAs cannot be served.
    /// - A guest does not boot.
    pub fn start(qemu: &Qemu, options: Options) -> Result<Self> {
        let images = options.guests.iter().map(|kind| image::image(&kind.recipe));
        let images = images.collect::<Result<Vec<Image>>>()?;
        let folder = Temporary::folder("lab")?;
        let programs = options.programs.iter().map(|source| program::compile(source, folder.path()));
        let mut programs = programs.collect::<Result<Vec<PathBuf>>>()?;
        programs.extend(options.binaries.iter().cloned());
        let count = nodes_of(&options.guests) + options.spare;
        let sockets: Vec<PathBuf> =
            (0..count).map(|node| folder.path().join(format!("hca{node}.sock"))).collect();
        let complaints: Arc<Mutex<Vec<String>>> = Arc::default();
        let of_guests = options.guests.iter().flat_map(|kind| kind.hcas.iter().cloned());
        let beside = std::iter::repeat_n(options.spare_kind.clone(), options.spare);
        let kinds: Vec<DeviceSpec> = of_guests.chain(beside).collect();
        let served_by = |sockets: &[PathBuf]| hca_serve::Options {
            strict: options.strict,
            packets_only: options.packets_only,
            log: collector(&complaints, options.show),
            ..hca_serve::Options::new(sockets.to_vec())
        };
        let (near, far) = match &options.joined {
            Some(cable) => {
                let others = options.guests.split_last().map_or(&[][..], |(_, others)| others);
                let (near, far) = sockets.split_at(nodes_of(others));
                let kinds = kinds.get(nodes_of(others)..).unwrap_or_default().to_vec();
                let far = hca_serve::Options { uplink: Some(cable.uplink.clone()), kinds, ..served_by(far) };
                (near, Some(far))
            }
            None => (&sockets[..], None),
        };
        let served = serve(hca_serve::Options {
            capture: options.capture.clone(),
            faults: options.faults,
            seed: options.seed,
            no_subnet_manager: options.no_subnet_manager,
            open_fabric: options.open_fabric,
            kinds: kinds.into_iter().take(near.len()).collect(),
            // A spare HCA may serve a program with private memory.
            file_io: options.spare > 0,
            listen: options.joined.as_ref().map(|cable| cable.listen.clone()),
            netdev: options
                .guests
                .iter()
                .any(|kind| kind.rxe)
                .then(|| Address::Unix(netdev_socket(folder.path()))),
            ..served_by(near)
        })?;
        let far = far.map(serve).transpose()?;
        let hub =
            if options.guests.len() > 1 { Some(Hub::new(folder.path().join("hub.sock"))?) } else { None };
        let guests = options.guests.iter().map(|_| None).collect();
        let mut lab = Self {
            guests,
            hub,
            served,
            far,
            sockets,
            qemu: qemu.clone(),
            images,
            programs,
            options,
            complaints,
            folder,
        };
        for number in 0..lab.options.guests.len() {
            lab.boot(number)?;
        }
        for number in 0..lab.options.guests.len() {
            lab.wait_ready(number)?;
        }
        Ok(lab)
    }

    /// Boots guest `number`, possibly again. [`Lab::wait_ready`] waits until it accepts scripts.
    ///
    /// # Errors
    /// QEMU cannot be started, or the guest does not exist.
    pub fn boot(&mut self, number: usize) -> Result<()> {
        let (Some(kind), Some(image)) = (self.options.guests.get(number), self.images.get(number)) else {
            return Err(no_guest(number));
        };
        let addresses = match self.hub {
            Some(_) => (0..self.options.guests.len()).map(|n| format!("10.77.0.{}", n + 1)).collect(),
            None => Vec::new(),
        };
        let first = nodes_of(self.options.guests.get(..number).unwrap_or_default());
        let options = GuestOptions {
            hcas: self.sockets.iter().skip(first).take(kind.hcas.len()).cloned().collect(),
            settings: Settings { number, addresses, programs: self.programs.clone() },
            iommu: kind.iommu,
            cpus: kind.cpus,
            more: self.network_arguments(number, kind),
            memory_mib: kind.memory_for(image)?,
            accelerator: self.options.accelerator.clone(),
            command_line: String::new(),
            show: self.options.show.then(|| format!("guest {number}")),
        };
        let place = self.guests.get_mut(number).ok_or_else(|| no_guest(number))?;
        *place = None;
        *place = Some(Guest::start(&self.qemu, image, &options)?);
        Ok(())
    }

    /// Returns QEMU's arguments for the ordinary network devices of a guest: that on the network of
    /// all guests first.
    fn network_arguments(&self, number: usize, kind: &Kind) -> Vec<String> {
        let hub = self.hub.as_ref().map(|hub| hub.arguments(number)).unwrap_or_default();
        let path = netdev_socket(self.folder.path());
        let switch = kind.rxe.then(|| network::stream("wire", &path, [1, number as u8])).into_iter();
        hub.into_iter().chain(switch.flatten()).collect()
    }

    /// Waits until guest `number` accepts scripts. Returns the boot time.
    ///
    /// # Errors
    /// The guest does not boot.
    pub fn wait_ready(&mut self, number: usize) -> Result<Duration> {
        let limit = self.options.boot_limit;
        self.guest(number)?.wait_ready(limit)
    }

    /// Returns guest `number`.
    ///
    /// # Errors
    /// The guest is not running.
    pub fn guest(&mut self, number: usize) -> Result<&mut Guest> {
        self.guests.get_mut(number).and_then(Option::as_mut).ok_or_else(|| no_guest(number))
    }

    /// Runs a script in guest `number`.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn run(&mut self, number: usize, script: &str, limit: Duration) -> Result<super::Answer> {
        self.guest(number)?.run(script, limit)
    }

    /// Runs a script in guest `number` and returns its lines. The script must exit with status 0.
    ///
    /// # Errors
    /// As [`Guest::run`]; [`Error::Guest`] with the script's last line if it exits with a different
    /// status.
    pub fn succeed(&mut self, number: usize, script: &str, limit: Duration) -> Result<Vec<String>> {
        let answer = self.run(number, script, limit)?;
        if answer.success() {
            return Ok(answer.lines);
        }
        let last = answer.lines.iter().rev().find(|line| !line.trim().is_empty());
        let last = last.map_or("it printed nothing", String::as_str);
        Err(Error::Guest(format!("the Linux guest's script ended with status {}: {last}", answer.status)))
    }

    /// Runs a script in all guests at the same time. If several fail to complete, the first error
    /// is returned.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn run_everywhere(&mut self, script: &str, limit: Duration) -> Result<Vec<super::Answer>> {
        for guest in self.guests.iter_mut().flatten() {
            guest.begin(script)?;
        }
        std::thread::scope(|scope| {
            let guests = self.guests.iter_mut().flatten();
            let threads: Vec<_> = guests.map(|guest| scope.spawn(move || guest.end(limit))).collect();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(Error::Program("a guest's thread has ended".into())))
            };
            threads.into_iter().map(ended).collect()
        })
    }

    /// Kills the QEMU of guest `number`.
    ///
    /// # Errors
    /// The guest is not running.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        let guest = self.guests.get_mut(number).and_then(Option::take).ok_or_else(|| no_guest(number))?;
        guest.kill();
        Ok(())
    }

    /// Returns the emulated HCAs and their fabric.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Returns the second server, which serves the last guest's HCAs, if there is one.
    pub fn far(&self) -> Option<&Served> {
        self.far.as_ref()
    }

    /// Returns the socket of node `node`. The guests' HCAs precede the spare ones.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn socket(&self, node: usize) -> Result<&Path> {
        let path = self.sockets.get(node).ok_or_else(|| Error::Usage(format!("there is no HCA {node}")))?;
        Ok(path)
    }

    /// Returns the number of the first spare node.
    pub fn first_spare(&self) -> usize {
        nodes_of(&self.options.guests)
    }

    /// Returns the set-up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the guests' QEMU.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Returns the first guest's kernel version, as in "6.1.0-50-amd64".
    pub fn version(&self) -> &str {
        self.images.first().map_or("", |image| &image.version)
    }

    /// Returns the kernel versions of all guests.
    pub fn versions(&self) -> Vec<&str> {
        self.images.iter().map(|image| image.version.as_str()).collect()
    }

    /// Returns the HCAs' complaints so far: refusals and warnings.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Powers all guests off and stops serving.
    ///
    /// # Errors
    /// A guest does not exit, or the HCAs' thread has exited.
    pub fn stop(mut self) -> Result<Summary> {
        for guest in self.guests.drain(..).flatten() {
            guest.power_off()?;
        }
        Ok(self.served.stop()?)
    }
}

/// Returns the number of HCAs of these guests.
fn nodes_of(guests: &[Kind]) -> usize {
    guests.iter().map(|kind| kind.hcas.len()).sum()
}

/// Returns the path of the socket at which network devices join the Ethernet switch.
fn netdev_socket(folder: &Path) -> PathBuf {
    folder.join("netdev.sock")
}

fn no_guest(number: usize) -> Error {
    Error::Usage(format!("there is no running guest {number}"))
}

/// Returns a sink that stores the complaints of HCAs.
fn collector(complaints: &Arc<Mutex<Vec<String>>>, show: bool) -> LogSink {
    let complaints = Arc::clone(complaints);
    Arc::new(move |node, entry| {
        if entry.level >= Level::Warning {
            let line = format!("hca {node}: {:.6} s: {entry}", entry.at as f64 / 1e9);
            if show {
                eprintln!("{line}");
            }
            complaints.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    })
}
