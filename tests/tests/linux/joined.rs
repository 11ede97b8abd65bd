//! Two Linux guests whose HCAs are of two servers, joined into one fabric: verbs, IP and RDS between them; the link between the servers
//! breaks and comes back; the server that has the fabric ends.

use crate::guests::{LIMIT, hcas_are_content, kernels_are_content, run};
use crate::ip::ip_up;
use crate::verbs::pingpong;
use hca_serve::link::Address;
use rdma_lab::linux::{Cable, Kernel, Lab, Options};
use rdma_lab::process::Temporary;
use runner::linux::judge;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The ends of connections that pass, and whether any may.
#[derive(Default)]
struct Passing {
    closed: bool,
    ends: Vec<UnixStream>,
}

/// What stands between the two servers, and can be cut.
struct Relay(Arc<Mutex<Passing>>);

impl Relay {
    fn start(at: &Path, to: PathBuf) -> Self {
        let listener = UnixListener::bind(at).expect("listens");
        let passing = Arc::<Mutex<Passing>>::default();
        let relay = Self(Arc::clone(&passing));
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let mut passing = passing.lock().expect("not poisoned");
                if passing.closed {
                    continue;
                }
                let Ok(far) = UnixStream::connect(&to) else { continue };
                let twin = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
                passing.ends.extend([twin(&near), twin(&far)]);
                for (from, to) in [(twin(&near), twin(&far)), (far, near)] {
                    std::thread::spawn(move || forward(from, to));
                }
            }
        });
        relay
    }

    /// Cuts all connections and lets none pass, or lets them pass again.
    fn set_closed(&self, closed: bool) {
        let mut passing = self.0.lock().expect("not poisoned");
        passing.closed = closed;
        for end in passing.ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Until either end is closed.
fn forward(mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Waits until the port of a guest is in a state, as Linux says it.
fn wait_port(lab: &mut Lab, guest: usize, state: &str) {
    let states = "/sys/class/infiniband/*/ports/1/state";
    run(
        lab,
        guest,
        &format!(
            "for wait in $(seq 600); do grep -q {state} {states} && exit 0; sleep 0.1; done; cat {states}; exit 1"
        ),
    );
}

/// Pings in both directions by RDS, and messages of all lengths from guest 1 to guest 0.
fn rds(lab: &mut Lab) {
    let [a, b] = ["172.16.0.1", "172.16.0.2"];
    run(lab, 1, &format!("rds ping {b} {a} 20 1"));
    run(lab, 0, &format!("rds ping {a} {b} 20 1"));
    // Linux acknowledges messages to an unbound port, and drops them.
    run(lab, 0, &format!("background sink rds receive {a} {b} 400 7; listening sink says '@rds listening'"));
    let sent = lab.run(1, &format!("rds send {b} {a} 400 7"), LIMIT).expect("it ends");
    let received = lab.run(0, "reap sink", LIMIT).expect("it ends");
    assert!(sent.success() && received.success(), "sender:\n{}\nreceiver:\n{}", sent.text(), received.text());
    // What was sent is what came.
    let sum = |text: &str| {
        let words = text.split_whitespace().skip_while(|word| *word != "op=rds_messages").skip(1);
        words.filter(|word| !word.starts_with("ns=")).map(str::to_owned).collect::<Vec<_>>()
    };
    let [sent, received] = [sent, received].map(|answer| sum(&answer.text()));
    assert!(
        sent.len() == 3 && sent[0] == "messages=400" && received.starts_with(&sent),
        "{sent:?} {received:?}"
    );
    println!("RDS: {}", sent.join(" "));
}

#[test]
fn guests_of_two_servers_and_a_link_that_breaks() {
    let folder = Temporary::folder("joined").expect("a folder");
    let [listen, uplink] = ["fabric", "relay"].map(|name| folder.path().join(name));
    let relay = Relay::start(&uplink, listen.clone());
    let cable = Cable { listen: Address::Unix(listen), uplink: Address::Unix(uplink) };
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest/rds.c");
    let options = Options { joined: Some(cable), programs: vec![program], ..Options::new(Kernel::V6_1, 2) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    ip_up(&mut lab);
    pingpong(&mut lab, "ibv_rc_pingpong", "-c -m 4096", 65_536);
    pingpong(&mut lab, "ibv_ud_pingpong", "-c", 2048);
    for guest in 0..2 {
        run(&mut lab, guest, "ip link set lo up && modprobe rds_rdma");
    }
    rds(&mut lab);

    // A link that breaks is a cable that is cut, and mended it is plugged in again: RDS goes on.
    relay.set_closed(true);
    wait_port(&mut lab, 1, "DOWN");
    run(&mut lab, 0, "grep ACTIVE /sys/class/infiniband/*/ports/1/state");
    relay.set_closed(false);
    wait_port(&mut lab, 1, "ACTIVE");
    pingpong(&mut lab, "ibv_rc_pingpong", "-c -m 4096", 65_536);
    rds(&mut lab);
    kernels_are_content(&mut lab, 2);
    hcas_are_content(&lab);

    // The server that has the fabric ends: the other one's guest has a device whose cable is out, and lets it go as ever.
    lab.kill(0).expect("it ran");
    lab.served().handle().stop().expect("it was served");
    wait_port(&mut lab, 1, "DOWN");
    run(&mut lab, 1, "ibv_devinfo | grep PORT_DOWN");
    run(
        &mut lab,
        1,
        "rmmod rds_rdma && rmmod ib_ipoib && modprobe -r rdma_ucm; rmmod mlx5_ib && rmmod mlx5_core && ! grep ^mlx5 /proc/modules",
    );
    let left = lab.far().and_then(hca_serve::Served::census).expect("the other is served");
    assert!(left.iter().all(|census| census.total() == 0), "{left:?}");
}
