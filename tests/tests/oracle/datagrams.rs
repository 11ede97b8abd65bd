//! QEMU's `-netdev dgram` at the Ethernet switch: iPXE resolves an address there and opens a TCP connection, by Unix and
//! by UDP datagrams. By `--long`.

use crate::ipxe::loader;
use hca_serve::link::{Address, Ends};
use hca_serve::{Options, serve};
use rdma_lab::process::Temporary;
use rdma_lab::qemu::{Guest, Machine, write_file};
use rdma_lab::setup;
use runner::conditions;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The longest that the machine may take to send a frame.
const LIMIT: Duration = Duration::from_secs(120);

const SCRIPT: &str = "#!ipxe\n\
    set net0/ip 10.0.0.7\n\
    set net0/netmask 255.255.255.0\n\
    ifopen net0\n\
    imgfetch http://10.0.0.1/file ||\n\
    poweroff\n";

/// MAC addresses of iPXE's device and of this test's.
const DEVICE: [u8; 6] = [0x52, 0x54, 0, 0, 0, 7];
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Returns the next frame from iPXE with this EtherType.
fn next(mut stream: &UnixStream, kind: [u8; 2]) -> Vec<u8> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("a frame");
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut frame).expect("a frame");
        if frame[6..12] == DEVICE && frame[12..14] == kind {
            return frame;
        }
    }
}

/// iPXE, whose device receives at `remote`, finds 10.0.0.1 at this test's device.
fn connects(ends: Ends, netdev: &str) {
    let Some(loader) = loader() else { return };
    let folder = Temporary::folder("datagrams").expect("a folder");
    let path = folder.path().join("netdev");
    let served = serve(Options {
        netdev: Some(Address::Unix(path.clone())),
        netdev_datagrams: vec![ends],
        notices: Arc::new(|_| {}),
        ..Options::new(Vec::new())
    })
    .expect("served");
    let stream = UnixStream::connect(&path).expect("connects");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    let mut machine = Machine::new(&loader);
    machine.initramfs = Some(write_file(folder.path(), "boot.ipxe", SCRIPT.as_bytes()).expect("written"));
    machine.exit_device = false;
    let mac = DEVICE.map(|byte| format!("{byte:02x}")).join(":");
    machine.more = ["-netdev", netdev, "-device", &format!("virtio-net-pci,netdev=n,romfile=,mac={mac}")]
        .map(str::to_owned)
        .into();
    let guest = Guest::start(&setup::qemu().expect("QEMU"), &machine).expect("QEMU");
    let request = next(&stream, [8, 6]);
    assert_eq!((&request[28..32], &request[38..42]), (&[10, 0, 0, 7][..], &[10, 0, 0, 1][..]), "ARP");
    let reply =
        [&DEVICE[..], &OWN, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &OWN, &[10, 0, 0, 1], &DEVICE, &[10, 0, 0, 7]];
    let reply = reply.concat();
    (&stream).write_all(&[&(reply.len() as u32).to_be_bytes()[..], &reply].concat()).expect("sent");
    let packet = next(&stream, [8, 0]);
    // The reply arrived: TCP from 10.0.0.7 to port 80, with SYN.
    assert_eq!((packet[23], &packet[26..30], &packet[36..38]), (6, &[10, 0, 0, 7][..], &[0, 80][..]));
    assert_eq!((&packet[..6], packet[47] & 0x12), (&OWN[..], 2));
    guest.kill();
    drop(served);
}

#[test]
fn devices_of_qemu_exchange_datagrams_with_the_switch() {
    if !conditions::long() {
        return;
    }
    let folder = Temporary::folder("ends").expect("a folder");
    let [local, remote] = ["server", "device"].map(|name| folder.path().join(name));
    let (to, at) = (local.display().to_string(), remote.display().to_string());
    let netdev = format!("dgram,id=n,local.type=unix,local.path={at},remote.type=unix,remote.path={to}");
    connects(Ends::Unix { local, remote }, &netdev);
    let free = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
    let [local, remote] = free.each_ref().map(|socket| socket.local_addr().expect("an address"));
    drop(free);
    let netdev = format!(
        "dgram,id=n,local.type=inet,local.host=127.0.0.1,local.port={},remote.type=inet,remote.host=127.0.0.1,\
         remote.port={}",
        remote.port(),
        local.port()
    );
    connects(Ends::Udp { local: local.to_string(), remote: remote.to_string() }, &netdev);
}
