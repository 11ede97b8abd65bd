//! What the tests that boot the unikernel stand on: QEMU, the image, served HCAs.

use hca_model::Profile;
use hca_serve::Served;
use rdma_lab::process::Temporary;
use runner::conditions;
use runner::kernel_image;
use runner::setup::{self, Qemu};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// From QEMU's start to its end, on a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(180);

pub struct Ground {
    pub qemu: Qemu,
    pub image: PathBuf,
    /// Image of the test partners.
    pub workload: PathBuf,
}

impl Ground {
    /// Returns the image whose command line this is.
    pub fn image_for(&self, words: &str) -> &Path {
        if words.contains("program=") { &self.workload } else { &self.image }
    }
}

/// QEMU and the image, made once; `None` where no QEMU can be had and need not.
pub fn ground() -> Option<&'static Ground> {
    static GROUND: OnceLock<Option<Ground>> = OnceLock::new();
    GROUND
        .get_or_init(|| match setup::qemu() {
            Ok(qemu) => {
                setup::rust_targets().expect("the bare-metal target");
                let image = kernel_image::build().expect("the image builds");
                let workload = kernel_image::build_workload().expect("the partners' image builds");
                Some(Ground { qemu, image, workload })
            }
            Err(error) => {
                let missing = matches!(error, rdma_lab::Error::Missing { .. });
                assert!(missing && !conditions::required(), "QEMU is required here: {error}");
                None
            }
        })
        .as_ref()
}

/// For a test that has no ground.
pub fn skip() {
    conditions::skip("no QEMU on this machine");
}

/// HCAs served for a test, quietly, and where.
pub struct Fabric {
    pub served: Served,
    pub sockets: Vec<PathBuf>,
    /// Servers whose fabric is the first one's.
    pub others: Vec<Served>,
    _folder: Temporary,
}

/// Two HCAs on one fabric, each served by a server of its own.
pub fn joined() -> Fabric {
    let folder = Temporary::folder("boot-test").expect("a folder");
    let sockets: Vec<PathBuf> = (0..2).map(|i| folder.path().join(format!("hca{i}"))).collect();
    let place = Some(hca_serve::link::Address::Unix(folder.path().join("fabric")));
    let quiet = |socket: &PathBuf| hca_serve::Options {
        log: Arc::new(|_, _| {}),
        notices: Arc::new(|_| {}),
        strict: true,
        ..hca_serve::Options::new(vec![socket.clone()])
    };
    let near = hca_serve::Options { listen: place.clone(), ..quiet(&sockets[0]) };
    let served = rdma_lab::serve::serve(near).expect("served");
    let far = hca_serve::Options { uplink: place, ..quiet(&sockets[1]) };
    let others = vec![rdma_lab::serve::serve(far).expect("joined")];
    Fabric { served, sockets, others, _folder: folder }
}

pub fn serve(profiles: Vec<Profile>) -> Fabric {
    serve_with(profiles, "none")
}

/// The same on a fabric with these faults.
pub fn serve_with(profiles: Vec<Profile>, faults: &str) -> Fabric {
    let folder = Temporary::folder("boot-test").expect("a folder");
    let sockets: Vec<PathBuf> = (0..profiles.len()).map(|i| folder.path().join(format!("hca{i}"))).collect();
    let options = hca_serve::Options {
        profiles,
        faults: faults.parse().expect("faults"),
        log: Arc::new(|_, _| {}),
        ..hca_serve::Options::new(sockets.clone())
    };
    Fabric {
        served: rdma_lab::serve::serve(options).expect("served"),
        sockets,
        others: Vec::new(),
        _folder: folder,
    }
}

impl Fabric {
    /// Nobody has left anything on the devices.
    pub fn assert_empty(&self) {
        let nothing = hca_model::Census::default();
        for served in std::iter::once(&self.served).chain(&self.others) {
            let census = served.census().expect("the devices' thread runs");
            assert!(census.iter().all(|census| *census == nothing), "objects are left: {census:?}");
        }
    }
}
