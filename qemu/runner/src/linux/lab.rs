//! Linux guests on one fabric of emulated HCAs, with room for unikernels beside them.

use super::guest::{Guest, Options as GuestOptions};
use super::image::{self, Image};
use super::network::Hub;
use super::overlay::Settings;
use super::program;
use super::recipe::Kernel;
use crate::error::{Error, Result};
use crate::process::Temporary;
use crate::serve::serve;
use crate::setup::Qemu;
use hca_model::DeviceSpec;
use hca_model::fabric::Faults;
use hca_model::log::Level;
use hca_serve::link::Address;
use hca_serve::{LogSink, Served, Summary};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The guests' kernel.
    pub kernel: Kernel,
    /// How many guests.
    pub guests: usize,
    /// Emulated HCAs of each guest.
    pub hcas: usize,
    /// What they are, in each guest; where nothing is said, ConnectX-5.
    pub kinds: Vec<DeviceSpec>,
    /// HCAs beside those of the guests, for unikernels.
    pub spare: usize,
    /// Programs of ours: C files, compiled now.
    pub programs: Vec<PathBuf>,
    /// Programs that are there already, linked statically.
    pub binaries: Vec<PathBuf>,
    /// An IOMMU in each guest.
    pub iommu: bool,
    /// All packets, in pcapng.
    pub capture: Option<PathBuf>,
    /// What goes wrong with packets.
    pub faults: Faults,
    /// The seed of what goes wrong.
    pub seed: u64,
    /// The fabric has no subnet manager: a guest runs one.
    pub no_subnet_manager: bool,
    /// The last guest's HCAs are another server's, which joins the fabric of the first.
    pub joined: Option<Cable>,
    /// The HCAs refuse what the PRM calls reserved or illegal, as Linux gives no reason to.
    pub strict: bool,
    /// Memory of each guest in MiB.
    pub memory_mib: u32,
    /// QEMU's accelerator.
    pub accelerator: String,
    /// The longest that a guest may take to boot.
    pub boot_limit: Duration,
    /// Print what guests and HCAs say as it comes.
    pub show: bool,
}

impl Options {
    /// `guests` guests with one HCA each.
    pub fn new(kernel: Kernel, guests: usize) -> Self {
        Self {
            kernel,
            guests,
            hcas: 1,
            kinds: Vec::new(),
            spare: 0,
            programs: Vec::new(),
            binaries: Vec::new(),
            iommu: false,
            capture: None,
            faults: Faults::default(),
            seed: 1,
            strict: true,
            no_subnet_manager: false,
            joined: None,
            memory_mib: 1024,
            accelerator: "tcg".into(),
            boot_limit: Duration::from_secs(180),
            show: false,
        }
    }
}

/// Between two servers.
#[derive(Debug, Clone)]
pub struct Cable {
    /// Where the first listens.
    pub listen: Address,
    /// Where the second looks for it: at the same place, or at what stands between them.
    pub uplink: Address,
}

/// Guests on one fabric. Dropped, nothing of it runs any more.
#[derive(Debug)]
pub struct Lab {
    // Dropped in this order: guests before what they are connected to.
    guests: Vec<Option<Guest>>,
    hub: Option<Hub>,
    served: Served,
    /// The server that joined the first.
    far: Option<Served>,
    sockets: Vec<PathBuf>,
    qemu: Qemu,
    image: Image,
    programs: Vec<PathBuf>,
    options: Options,
    complaints: Arc<Mutex<Vec<String>>>,
    _folder: Temporary,
}

impl Lab {
    /// Serves the HCAs, boots the guests and waits until all take scripts.
    ///
    /// # Errors
    /// [`Error::Missing`] where Debian packages or a compiler cannot be had; the HCAs cannot be served; a guest does not
    /// come up.
    pub fn start(qemu: &Qemu, options: Options) -> Result<Self> {
        let image = image::image(&options.kernel.recipe())?;
        let folder = Temporary::folder("lab")?;
        let programs = options.programs.iter().map(|source| program::compile(source, folder.path()));
        let mut programs = programs.collect::<Result<Vec<PathBuf>>>()?;
        programs.extend(options.binaries.iter().cloned());
        let count = options.guests * options.hcas + options.spare;
        let sockets: Vec<PathBuf> =
            (0..count).map(|node| folder.path().join(format!("hca{node}.sock"))).collect();
        let complaints: Arc<Mutex<Vec<String>>> = Arc::default();
        let of_guest = |hca: usize| options.kinds.get(hca).cloned().unwrap_or_default();
        let kinds: Vec<DeviceSpec> =
            (0..options.guests).flat_map(|_| (0..options.hcas).map(of_guest)).collect();
        let served_by = |sockets: &[PathBuf]| hca_serve::Options {
            strict: options.strict,
            log: collector(&complaints, options.show),
            ..hca_serve::Options::new(sockets.to_vec())
        };
        let (near, far) = match &options.joined {
            Some(cable) => {
                let (near, far) = sockets.split_at(options.guests.saturating_sub(1) * options.hcas);
                let kinds = kinds.iter().take(options.hcas).cloned().collect();
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
            kinds,
            // Whoever has a spare HCA may be a program with memory of its own.
            file_io: options.spare > 0,
            listen: options.joined.as_ref().map(|cable| cable.listen.clone()),
            ..served_by(near)
        })?;
        let far = far.map(serve).transpose()?;
        let hub = if options.guests > 1 { Some(Hub::new(folder.path().join("hub.sock"))?) } else { None };
        let guests = (0..options.guests).map(|_| None).collect();
        let mut lab = Self {
            guests,
            hub,
            served,
            far,
            sockets,
            qemu: qemu.clone(),
            image,
            programs,
            options,
            complaints,
            _folder: folder,
        };
        for number in 0..lab.options.guests {
            lab.boot(number)?;
        }
        for number in 0..lab.options.guests {
            lab.wait_ready(number)?;
        }
        Ok(lab)
    }

    /// Boots guest `number` (again); [`Lab::wait_ready`] waits until it takes scripts.
    ///
    /// # Errors
    /// QEMU cannot be started, or there is no such guest.
    pub fn boot(&mut self, number: usize) -> Result<()> {
        let addresses = match self.hub {
            Some(_) => (0..self.options.guests).map(|n| format!("10.77.0.{}", n + 1)).collect(),
            None => Vec::new(),
        };
        let first = number * self.options.hcas;
        let options = GuestOptions {
            hcas: self.sockets.iter().skip(first).take(self.options.hcas).cloned().collect(),
            settings: Settings { number, addresses, programs: self.programs.clone() },
            iommu: self.options.iommu,
            more: self.hub.as_ref().map(|hub| hub.arguments(number)).unwrap_or_default(),
            memory_mib: self.options.memory_mib,
            accelerator: self.options.accelerator.clone(),
            command_line: String::new(),
            show: self.options.show.then(|| format!("guest {number}")),
        };
        let place = self.guests.get_mut(number).ok_or_else(|| no_guest(number))?;
        *place = None;
        *place = Some(Guest::start(&self.qemu, &self.image, &options)?);
        Ok(())
    }

    /// Waits until guest `number` takes scripts; answers how long it took to boot.
    ///
    /// # Errors
    /// It does not come up.
    pub fn wait_ready(&mut self, number: usize) -> Result<Duration> {
        let limit = self.options.boot_limit;
        self.guest(number)?.wait_ready(limit)
    }

    /// Guest `number`.
    ///
    /// # Errors
    /// It does not run.
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

    /// Runs a script in all guests at the same time.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn run_everywhere(&mut self, script: &str, limit: Duration) -> Result<Vec<super::Answer>> {
        for guest in self.guests.iter_mut().flatten() {
            guest.begin(script)?;
        }
        self.guests.iter_mut().flatten().map(|guest| guest.end(limit)).collect()
    }

    /// Kills guest `number`'s QEMU.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        let guest = self.guests.get_mut(number).and_then(Option::take).ok_or_else(|| no_guest(number))?;
        guest.kill();
        Ok(())
    }

    /// The emulated HCAs and their fabric.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// The last guest's emulated HCAs, where another server has them.
    pub fn far(&self) -> Option<&Served> {
        self.far.as_ref()
    }

    /// The socket of node `node`: the guests' HCAs come first, then the spare ones.
    ///
    /// # Errors
    /// There is no such node.
    pub fn socket(&self, node: usize) -> Result<&Path> {
        let path = self.sockets.get(node).ok_or_else(|| Error::Usage(format!("there is no HCA {node}")))?;
        Ok(path)
    }

    /// The number of the first spare node.
    pub fn first_spare(&self) -> usize {
        self.options.guests * self.options.hcas
    }

    /// What is set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The guests' QEMU.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// The guests' kernel, as in "6.1.0-50-amd64".
    pub fn version(&self) -> &str {
        &self.image.version
    }

    /// What the HCAs complained of so far: refusals, and warnings.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Powers all guests off and stops serving.
    ///
    /// # Errors
    /// A guest does not end, or the HCAs' thread has ended.
    pub fn stop(mut self) -> Result<Summary> {
        for guest in self.guests.drain(..).flatten() {
            guest.power_off()?;
        }
        Ok(self.served.stop()?)
    }
}

fn no_guest(number: usize) -> Error {
    Error::Usage(format!("there is no running guest {number}"))
}

/// Keeps what HCAs complain of.
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
