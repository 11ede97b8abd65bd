//! Measures the cost of an idle server, in a separate process, because it reads the process's
//! processor time.

use hca_serve::{Options, serve};
use std::path::PathBuf;
use std::time::Duration;
use vfio_user::Client;

#[test]
fn an_idle_server_sleeps() {
    let folder = std::env::temp_dir();
    let name = |index| folder.join(format!("hca-serve-idle-{}-{index}", std::process::id()));
    let sockets: Vec<PathBuf> = (0..2).map(name).collect();
    let _served = serve(Options::new(sockets.clone())).expect("served");
    let _clients: Vec<Client> = sockets.iter().map(|path| Client::new(path).expect("connects")).collect();
    let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::thread::sleep(Duration::from_millis(200));
    let before = spent();
    std::thread::sleep(Duration::from_secs(1));
    let after = spent();
    let used = (after.tv_sec - before.tv_sec) as f64 + (after.tv_nsec - before.tv_nsec) as f64 / 1e9;
    assert!(used < 0.2, "{used} s of processor time in 1 s");
}
