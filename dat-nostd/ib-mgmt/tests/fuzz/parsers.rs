//! Everything that takes bytes apart, on bytes of any content and length.

use crate::hostile::Random;
use ib_mgmt::cm::message::{Dreq, Message, Rej, Req, SidrRep};
use ib_mgmt::ipoib::{Arp, HwAddr, decap};
use ib_mgmt::mad::{ClassPortInfo, Mad};
use ib_mgmt::sa::{
    GuidInfoRecord, InformInfo, McMemberRecord, NodeRecord, Notice, PathRecord, PortInfoRecord, SaMad,
    ServiceRecord,
};
use ib_mgmt::smp::{GuidInfo, NodeInfo, PKeyTable, PortInfo, SlToVl, Smp, VlArbitration};
use ib_mgmt::{rdma_cm, rmpp};

/// Reads every field: `Debug` calls every getter.
fn look(value: impl core::fmt::Debug) {
    assert!(!format!("{value:?}").is_empty());
}

pub fn any_bytes(random: &mut Random) {
    for _ in 0..32 {
        let len = random.index(300);
        let mut bytes = random.bytes(len);
        // Beginnings that lead further in.
        let starts: [&[u8]; 6] = [
            &[0, 0x40],
            &[0, 0x60],
            &[0, 32, 8, 0, 20, 4, 0, 1],
            &[8, 6, 0, 0, 0, 32, 8, 0, 20, 4, 0, 2],
            &[1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10],
            &[],
        ];
        let start = starts[random.index(starts.len())];
        let common = start.len().min(bytes.len());
        bytes[..common].copy_from_slice(&start[..common]);
        if random.chance(50) {
            random.spoil(&mut bytes);
        }
        slices(&bytes);
        let mut whole = [0; 256];
        let n = bytes.len().min(256);
        whole[..n].copy_from_slice(&bytes[..n]);
        mads(Mad::from_bytes(whole));
    }
}

fn slices(bytes: &[u8]) {
    if let Ok((header, rest)) = rdma_cm::Header::parse(bytes) {
        assert_eq!(rest.len() + rdma_cm::HEADER_LEN, bytes.len());
        let again = header.to_bytes().expect("both of a family");
        assert_eq!(rdma_cm::Header::parse(&again).map(|(header, _)| header), Ok(header));
    }
    if let Some(arp) = Arp::parse(bytes) {
        assert_eq!(Arp::parse(&arp.to_bytes()), Some(arp));
    }
    if let Some((_, payload)) = decap(bytes) {
        assert_eq!(payload.len() + 4, bytes.len());
        Arp::parse(payload);
    }
    if let Some(hw) = bytes.first_chunk::<20>() {
        assert_eq!(HwAddr::from_bytes(hw).to_bytes(), *hw);
    }
    look((PathRecord::from_slice(bytes), McMemberRecord::from_slice(bytes)));
    look((NodeRecord::from_slice(bytes), PortInfoRecord::from_slice(bytes)));
    look((GuidInfoRecord::from_slice(bytes), ServiceRecord::from_slice(bytes)));
    look((InformInfo::from_slice(bytes), Notice::from_slice(bytes)));
    look((ClassPortInfo::from_slice(bytes), NodeInfo::from_slice(bytes), PortInfo::from_slice(bytes)));
    if let Some(record) = PathRecord::from_slice(bytes) {
        look((record.grh(), record.gsi_address()));
    }
    if let Some(block) = bytes.first_chunk::<64>() {
        look((GuidInfo::from_bytes(block), PKeyTable::from_bytes(block), VlArbitration::from_bytes(block)));
    }
    if let Some(block) = bytes.first_chunk::<8>() {
        look(SlToVl::from_bytes(block));
    }
}

fn mads(mad: Mad) {
    look((mad, mad.to_response(0x1c), mad.is_response()));
    let smp = Smp::from_bytes(*mad.as_bytes());
    look(smp);
    let sa = SaMad::from_mad(&mad);
    look((sa, sa.is_single_segment(), rmpp::is_active(&sa)));
    assert_eq!(sa.to_mad(), mad);
    let Some(message) = Message::parse(&mad) else { return };
    look(message);
    match message {
        Message::Req(req) => assert_eq!(req.private_data().len(), Req::PRIVATE_LEN),
        Message::Rej(rej) => assert_eq!((rej.info().len(), rej.private_data().len()), (72, Rej::PRIVATE_LEN)),
        Message::Dreq(dreq) => assert_eq!(dreq.private_data().len(), Dreq::PRIVATE_LEN),
        Message::SidrRep(rep) => assert_eq!(rep.private_data().len(), SidrRep::PRIVATE_LEN),
        _ => {}
    }
}
