//! Tests of the served HCA with a third-party vfio-user client.

use crate::support::{memory, serve, serve_with};
use hca_serve::Options;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;

const BAR0: u32 = 0;
const CONFIG: u32 = VFIO_PCI_CONFIG_REGION_INDEX;

/// Turns memory decoding on and leaves the rest of configuration space unchanged.
fn decode(client: &mut Client) {
    let command = read32(client, CONFIG, 4) as u16 | 1 << 1;
    client.region_write(CONFIG, 4, &command.to_le_bytes()).expect("write");
}

fn write_queue(client: &mut Client, address: u32) {
    decode(client);
    client.region_write(BAR0, 0x14, &address.to_be_bytes()).expect("write");
}

fn read32(client: &mut Client, region: u32, offset: u64) -> u32 {
    if region == BAR0 {
        decode(client);
    }
    let mut bytes = [0; 4];
    client.region_read(region, offset, &mut bytes).expect("read");
    if region == CONFIG { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
}

#[test]
fn the_device_is_a_connectx_5_with_its_regions_and_vectors() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]).expect("connects");
    assert_eq!(read32(&mut client, CONFIG, 0), 0x1017_15b3);
    assert_eq!(read32(&mut client, CONFIG, 8) >> 8, 0x02_07_00, "class: InfiniBand");
    assert_eq!(client.region(BAR0).map(|region| region.size), Some(32 << 20));
    assert_eq!(client.region(CONFIG).map(|region| region.size), Some(4096));
    assert_eq!(client.region(1).map(|region| region.size), Some(0));
    let vectors = client.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).expect("interrupts");
    assert!(vectors.count >= 4, "{vectors:?}");
    assert_eq!(vectors.flags, 1, "not NORESIZE: the client would drop all vectors to add one");
    let mut whole = vec![0; 4096];
    client.region_read(CONFIG, 0, &mut whole).expect("the whole of configuration space, as QEMU reads it");
    assert_eq!(whole[..4], [0xb3, 0x15, 0x17, 0x10]);
    assert_ne!(read32(&mut client, BAR0, 0), 0, "firmware revision in the initialization segment");
}

#[test]
fn a_register_write_shows_in_its_read_back_and_a_closed_connection_resets() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]).expect("connects");
    let address = 0x1234_5000u32;
    write_queue(&mut client, address);
    assert_eq!(read32(&mut client, BAR0, 0x14) & 0xffff_f000, address);
    drop(client);
    // The server accepts a client as soon as it has seen the previous one disconnect.
    let mut client = Client::new(&sockets[0]).expect("connects again");
    assert_eq!(read32(&mut client, BAR0, 0x14) & 0xffff_f000, 0, "as at power-on");
}

#[test]
fn warm_restarts_leave_the_device_as_it_is_and_others_do_not() {
    let (_folder, served, sockets) = serve_with(1, |options| Options { warm: true, ..options });
    let resets = || served.handle().states().expect("served")[0].resets;
    let address = 0x1234_5000u32;
    let held = |client: &mut Client| read32(client, BAR0, 0x14) & 0xffff_f000;
    let mut client = Client::new(&sockets[0]).expect("connects");
    write_queue(&mut client, address);
    client.region_write(CONFIG, 4, &[0x06, 0x04]).expect("write");
    client.reset().expect("reset");
    assert_eq!(held(&mut client), address, "after the client's reset");
    drop(client);
    let mut client = Client::new(&sockets[0]).expect("connects again");
    assert_eq!(held(&mut client), address, "for the next client");
    assert_eq!(read32(&mut client, CONFIG, 4) & 0xffff, 0x0406, "configuration space too");
    assert_eq!(resets(), 0);
    // Function-level reset, which drivers use.
    client.region_write(CONFIG, 0x68, &[0x10, 0xa8]).expect("write");
    assert_eq!((held(&mut client), resets()), (0, 1));
    served.with_world(|world, _| world.hca_mut(0).expect("served").set_warm(false)).expect("served");
    write_queue(&mut client, address);
    client.reset().expect("reset");
    assert_eq!((held(&mut client), resets()), (0, 2), "as at power-on");
}

#[test]
fn hundreds_of_maps_come_and_go_and_wrong_ones_are_refused() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]).expect("connects");
    let file = memory(256 * 4096);
    let started = Instant::now();
    for round in 0..4 {
        for page in 0..256u64 {
            client.dma_map(page * 4096, page << 20, 4096, file.as_raw_fd()).expect("map");
        }
        for page in 0..256u64 {
            client.dma_unmap(page << 20, 4096).expect("unmap");
        }
        assert!(started.elapsed() < Duration::from_secs(20), "round {round}");
    }
    client.reset().expect("reset");
    assert_eq!(read32(&mut client, CONFIG, 0), 0x1017_15b3, "and the device still answers");
}

#[test]
fn vectors_take_descriptors_one_by_one_and_go_all_at_once() {
    let (_folder, _served, sockets) = serve(1);
    let mut client = Client::new(&sockets[0]).expect("connects");
    let set = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, set, 0, 1, &[]).expect("enabling comes without a descriptor");
    for vector in 0..4 {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("eventfd");
        client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, set, vector, 1, &[event.as_raw_fd()]).expect("vector");
    }
    let none = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, none, 0, 0, &[]).expect("off");
    assert_eq!(read32(&mut client, CONFIG, 0), 0x1017_15b3);
}

#[test]
fn each_socket_is_a_device_of_its_own() {
    let (_folder, _served, sockets) = serve(2);
    let mut clients: Vec<Client> = sockets.iter().map(|path| Client::new(path).expect("connects")).collect();
    for (client, value) in clients.iter_mut().zip([0x1111_1000u32, 0x2222_2000]) {
        write_queue(client, value);
    }
    for (client, value) in clients.iter_mut().zip([0x1111_1000u32, 0x2222_2000]) {
        assert_eq!(read32(client, BAR0, 0x14) & 0xffff_f000, value);
    }
}

#[test]
fn a_client_that_talks_nonsense_loses_its_connection_and_the_next_is_served() {
    let (_folder, _served, sockets) = serve(1);
    for nonsense in
        [&[0xff; 64][..], &[0; 3], b"\x01\x00\x01\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"]
    {
        let mut stream = UnixStream::connect(&sockets[0]).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("time limit");
        stream.write_all(nonsense).expect("write");
        stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
        // The server sends an error reply or nothing, and closes the connection.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    let mut client = Client::new(&sockets[0]).expect("connects");
    assert_eq!(read32(&mut client, CONFIG, 0), 0x1017_15b3);
}

#[test]
fn a_socket_in_use_is_refused_and_stopping_removes_the_sockets() {
    let (_folder, served, sockets) = serve(2);
    let refused = hca_serve::serve(Options::new(vec![sockets[1].clone()])).expect_err("in use").to_string();
    assert!(refused.contains("in use") && !refused.contains('\n'), "{refused}");
    let summary = served.stop().expect("stops");
    assert_eq!(summary.refusals, [0, 0]);
    assert!(sockets.iter().all(|path| !path.exists()));
}
