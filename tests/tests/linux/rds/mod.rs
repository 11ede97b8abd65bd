//! Linux with `rds_rdma` and a unikernel on one fabric.

mod boot_image;
mod library;
mod messages;
mod rdma;
pub mod stress;

use crate::guests::{census_without_keys, kernels_are_content, remove_drivers, run};
use crate::node::{Node, Pair};
use hca_model::Census;
use rdma_lab::linux::{Kernel, Lab, Options};
use runner::kernel_image;
use runner::linux::judge;
use runner::setup;
use std::path::PathBuf;

/// Where Linux is, and where the unikernel is.
pub const LINUX: &str = Pair::INFINIBAND.linux;
pub const UNIKERNEL: &str = Pair::INFINIBAND.unikernel;

/// The line of a program of ours that begins with `start`.
pub fn result<'a>(lines: &'a [String], start: &str) -> &'a str {
    let found = lines.iter().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no {start:?} in:\n{}", lines.join("\n")))
}

/// A guest with `rds_rdma` over IP on InfiniBand, room for a unikernel, and its image.
pub struct Ground {
    pub lab: Lab,
    image: PathBuf,
    /// Image of the test partners.
    workload: PathBuf,
    /// Objects in the unikernel's HCA before anything else.
    before: Census,
}

impl Ground {
    /// With programs of ours from the folder `guest`. `None` where there can be none.
    pub fn new(kernel: Kernel, programs: &[&str]) -> Option<Self> {
        Self::with_binaries(kernel, programs, vec![])
    }

    /// And with these programs, which run in any guest.
    pub fn with_binaries(kernel: Kernel, programs: &[&str], binaries: Vec<PathBuf>) -> Option<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest");
        let programs = programs.iter().map(|name| folder.join(name)).collect();
        let capture = std::env::var_os("RDS_CAPTURE").map(PathBuf::from);
        let options = Options { spare: 1, programs, binaries, capture, ..Options::new(kernel, 1) };
        let mut lab = judge::lab_or_skip(options)?;
        println!("Linux {}", lab.version());
        setup::rust_targets().expect("the bare-metal target");
        let image = kernel_image::build().expect("the image builds");
        let workload = kernel_image::build_workload().expect("the partners' image builds");
        run(
            &mut lab,
            0,
            &format!(
                "dmesg -c > /dev/null; hcas-up && modprobe ib_ipoib || exit 1\n\
                 ip link set lo up; ip address add {LINUX}/24 dev ib0 && ip link set ib0 up || exit 1\n\
                 for wait in $(seq 300); do [ \"$(cat /sys/class/net/ib0/carrier 2> /dev/null)\" = 1 ] && break; sleep 0.1; done\n\
                 modprobe rds_rdma"
            ),
        );
        let before = census_without_keys(&lab).remove(1);
        Some(Self { lab, image, workload, before })
    }

    /// A unikernel with this command line.
    pub fn unikernel(&self, words: &str) -> Node {
        let image = if words.contains("program=") { &self.workload } else { &self.image };
        Pair::INFINIBAND.start(&self.lab, image, words)
    }

    /// Runs a script in the guest, which has to succeed; what it printed.
    pub fn linux(&mut self, script: &str) -> Vec<String> {
        run(&mut self.lab, 0, script).lines
    }

    /// Nothing of any unikernel is left in its HCA.
    pub fn nothing_is_left_of_the_unikernel(&self) {
        assert_eq!(census_without_keys(&self.lab).remove(1), self.before, "left in the unikernel's HCA");
    }

    /// Takes Linux down; neither its kernel nor an HCA may have complained.
    pub fn end(self) {
        self.end_but_for(&[]);
    }

    /// The same where HCAs refused something, reported in lines with one of these words.
    pub fn end_but_for(mut self, refusals: &[&str]) {
        self.nothing_is_left_of_the_unikernel();
        kernels_are_content(&mut self.lab, 1);
        self.linux("rmmod rds_rdma && rmmod rds && rmmod rdma_cm ib_ipoib");
        remove_drivers(&mut self.lab);
        let guest = self.lab.guest(0).expect("the guest");
        let complaints = judge::complaints(&guest.take_kernel_log().expect("the kernel's log"));
        // Linux tries for ever to reach a unikernel that is gone: an attempt may meet the removal of its device.
        let others = complaints.iter().filter(|line| !line.ends_with("rds_ib_setup_qp failed (-95)"));
        let others: Vec<_> = others.collect();
        assert!(others.is_empty(), "{others:?}");
        let mut complaints = self.lab.complaints();
        complaints.retain(|line| !refusals.iter().any(|words| line.contains(words)));
        assert!(complaints.is_empty(), "the HCAs complain:\n{}", complaints.join("\n"));
        self.lab.stop().expect("it powers off");
    }
}
