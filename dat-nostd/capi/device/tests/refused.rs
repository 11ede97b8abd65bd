//! Devices that fail to come up leave nothing in the process.

use capi_device::{Choices, Target, device};
use dat_nostd::adapter_storage;
use hca_serve::{Options, serve};
use platform_linux::LinuxBar;
use std::time::{Duration, Instant};

/// Too little for an adapter.
const LITTLE: usize = 1 << 16;
/// More than any machine has.
const MUCH: usize = 1 << 46;

adapter_storage! {
    struct Tables { bar: LinuxBar, dma_bytes: LITTLE }
}

/// Mappings of DMA regions, and descriptors.
fn holdings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("readable").count();
    (maps.lines().filter(|line| line.contains("hca-dma")).count(), descriptors)
}

#[test]
fn what_does_not_come_up_leaves_nothing_behind() {
    let folder = std::env::temp_dir().join(format!("capi-device-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let socket = folder.join("hca0");
    let _served = serve(Options { file_io: true, ..Options::new(vec![socket.clone()]) }).expect("served");
    let target = Target::from_name(&format!("{}@10.0.0.1", socket.display())).expect("a name");
    let before = holdings();
    for dma_bytes in [LITTLE, MUCH].into_iter().cycle().take(20) {
        let tables = Box::leak(Box::new(Tables::new()));
        let choices = Choices { library: "test", dma_bytes, id: 0, service_patience: Duration::ZERO };
        assert!(device::open(&target, tables.parts(), &choices).is_err());
    }
    // The server's ends of the connections are this process's, too, and close when it hears of it.
    let end = Instant::now() + Duration::from_secs(60);
    while holdings() != before && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(holdings(), before, "mappings and descriptors");
    let _ = std::fs::remove_dir_all(&folder);
}
