//! Everything that takes bytes apart, on bytes of any content and length.

use crate::hostile::Random;
use ib_mgmt::cm::message::{Dreq, Message, Rej, Req, SidrRep};
use ib_mgmt::ipoib::{Arp, HwAddr, decap};
use ib_mgmt::mad::{ClassPortInfo, Mad};
use ib_mgmt::path::Path;
use ib_mgmt::sa::{
    GuidInfoRecord, InformInfo, McMemberRecord, NodeRecord, Notice, PathRecord, PortInfoRecord, SaMad,
    ServiceRecord,
};
use ib_mgmt::smp::{GuidInfo, NodeInfo, PKeyTable, PortInfo, SlToVl, Smp, VlArbitration};
use ib_mgmt::wire::{Bth, ExtHeaders, Grh, Lrh, Opcode, Packet};
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
        look((Path::from_record(&record).grh(), Path::from_record(&record).gsi_address()));
    }
    if let Some(block) = bytes.first_chunk::<64>() {
        look((GuidInfo::from_bytes(block), PKeyTable::from_bytes(block), VlArbitration::from_bytes(block)));
    }
    if let Some(block) = bytes.first_chunk::<8>() {
        look(SlToVl::from_bytes(block));
    }
    look((Lrh::parse(bytes), Grh::parse(bytes), Bth::parse(bytes)));
    for code in [0x00, 0x06, 0x0c, 0x11, 0x12, 0x13, 0x16, 0x64, 0xa4, 0xff] {
        if let Ok((_, rest)) = ExtHeaders::parse(Opcode(code), bytes) {
            assert!(rest.len() <= bytes.len());
        }
    }
    if let Ok(packet) = Packet::parse(bytes) {
        look(packet);
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

/// Whole packets: a good one, spoilt a little, so that the way through the headers is long.
pub fn packets(random: &mut Random) {
    for _ in 0..16 {
        let payload = random.index(300);
        let grh = random.chance(50);
        let opcode = [0x64u8, 0x04, 0x0a, 0x0c, 0x10, 0x11, 0x12, 0x13, 0x65, 0x81][random.index(10)];
        let mut bytes = vec![0u8, if grh { 3 } else { 2 }];
        let content = 8 + usize::from(grh) * 40 + 12 + 28 + payload + 4;
        let words = content.div_ceil(4) as u16 + random.below(3) as u16;
        bytes.extend(random.bytes(2));
        bytes.extend(words.to_be_bytes());
        bytes.extend(random.bytes(2));
        if grh {
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend((content as u16 - 48).to_be_bytes());
            bytes.extend([0x1b, 64]);
            bytes.extend(random.bytes(32));
        }
        bytes.extend([opcode, 0, 0xff, 0xff]);
        let len = content + random.index(8);
        bytes.extend(random.bytes(len));
        if random.chance(60) {
            random.spoil(&mut bytes);
        }
        if random.chance(20) {
            let len = random.index(bytes.len());
            bytes.truncate(len);
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            look(packet);
        }
        slices(&bytes);
    }
}
