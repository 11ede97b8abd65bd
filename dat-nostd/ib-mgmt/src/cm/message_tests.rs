//! Literal bytes and round trips of the messages.

use super::*;
use crate::cm::RejReason;
use crate::view::tests::assert_disjoint;
use proptest::prelude::*;

#[test]
fn fields_do_not_overlap() {
    for fields in [
        Req::fields(),
        Mra::fields(),
        Rej::fields(),
        Rep::fields(),
        Rtu::fields(),
        Dreq::fields(),
        Drep::fields(),
        Lap::fields(),
        Apr::fields(),
        SidrReq::fields(),
        SidrRep::fields(),
    ] {
        assert_disjoint(fields, 232);
    }
}

#[test]
fn req_literal() {
    let mut req = Req::zeroed();
    req.set_local_comm_id(0x0102_0304)
        .set_service_id(0x0000_0000_0106_48ca)
        .set_local_ca_guid(Guid::new(0x1112_1314_1516_1718))
        .set_local_qpn(QpNumber::new(0x0a0b0c))
        .set_responder_resources(16)
        .set_initiator_depth(8)
        .set_remote_cm_response_timeout(20)
        .set_transport_service(transport::RC)
        .set_flow_control(true)
        .set_starting_psn(Psn::new(0x0d0e0f))
        .set_local_cm_response_timeout(20)
        .set_retry_count(7)
        .set_pkey(PKey::DEFAULT)
        .set_path_mtu(5)
        .set_rnr_retry_count(6)
        .set_max_cm_retries(15)
        .set_srq(true)
        .set_primary_local_lid(Lid::new(3))
        .set_primary_remote_lid(Lid::new(4))
        .set_primary_flow_label(0x12345)
        .set_primary_packet_rate(16)
        .set_primary_traffic_class(0x20)
        .set_primary_hop_limit(1)
        .set_primary_sl(ServiceLevel::new(2))
        .set_primary_subnet_local(true)
        .set_primary_local_ack_timeout(19)
        .set_sap_supported(true);
    req.set_private_data(&[0xaa, 0xbb]).unwrap();
    let mad = req.to_mad(0x99);
    let b = mad.as_bytes();
    assert_eq!(b[..4], [1, 7, 2, 3]);
    assert_eq!(b[16..18], [0, 0x10]);
    let m = &b[24..];
    assert_eq!(m[..4], [1, 2, 3, 4]);
    assert_eq!(m[8..16], [0, 0, 0, 0, 0x01, 0x06, 0x48, 0xca]);
    assert_eq!(m[32..40], [0x0a, 0x0b, 0x0c, 16, 0, 0, 0, 8]);
    assert_eq!(m[43..48], [0xa1, 0x0d, 0x0e, 0x0f, 0xa7]);
    assert_eq!(m[48..56], [0xff, 0xff, 0x56, 0xf8, 0, 3, 0, 4]);
    assert_eq!(m[88..96], [0x12, 0x34, 0x50, 0x10, 0x20, 0x01, 0x28, 0x98]);
    assert_eq!(m[139], 0x04);
    assert_eq!(m[140..143], [0xaa, 0xbb, 0]);
    assert_eq!(Message::parse(&mad), Some(Message::Req(req)));
}

#[test]
fn rep_literal() {
    let mut rep = Rep::zeroed();
    rep.set_local_comm_id(1)
        .set_remote_comm_id(2)
        .set_local_qpn(QpNumber::new(0x010203))
        .set_starting_psn(Psn::new(0x040506))
        .set_responder_resources(4)
        .set_initiator_depth(5)
        .set_target_ack_delay(15)
        .set_failover_accepted(1)
        .set_flow_control(true)
        .set_rnr_retry_count(7)
        .set_srq(true)
        .set_local_ca_guid(Guid::new(0x2122_2324_2526_2728));
    rep.set_private_data(&[0xcc; 196]).unwrap();
    let b = rep.as_bytes();
    assert_eq!(b[..8], [0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(b[12..16], [1, 2, 3, 0]);
    assert_eq!(b[20..28], [4, 5, 6, 0, 4, 5, 0x7b, 0xf0]);
    assert_eq!(b[28..37], [0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0xcc]);
    assert_eq!(rep.set_private_data(&[0; 197]), Err(TooLong));
}

#[test]
fn rej_mra_dreq_sidr_literals() {
    let mut rej = Rej::zeroed();
    rej.set_message_rejected(which::REP).set_reason(RejReason::CONSUMER_DEFINED.0);
    rej.set_info(&[1, 2, 3]).unwrap().set_private_data(&[9]).unwrap();
    assert_eq!(rej.as_bytes()[8..16], [0x40, 6, 0, 28, 1, 2, 3, 0]);
    assert_eq!(rej.as_bytes()[84], 9);
    assert_eq!(rej.set_info(&[0; 73]), Err(TooLong));
    let mut mra = Mra::zeroed();
    mra.set_message_mraed(which::REP).set_service_timeout(24);
    assert_eq!(mra.as_bytes()[8..10], [0x40, 0xc0]);
    let mut dreq = Dreq::zeroed();
    dreq.set_remote_qpn(QpNumber::new(0x112233));
    assert_eq!(dreq.as_bytes()[8..12], [0x11, 0x22, 0x33, 0]);
    let mut sidr = SidrRep::zeroed();
    sidr.set_status(sidr_status::NO_QP)
        .set_qpn(QpNumber::new(0x445566))
        .set_service_id(7)
        .set_qkey(QKey::new(0x8001_0000));
    assert_eq!(sidr.as_bytes()[4..12], [3, 0, 0, 0, 0x44, 0x55, 0x66, 0]);
    assert_eq!(sidr.as_bytes()[19..24], [7, 0x80, 1, 0, 0]);
}

#[test]
fn foreign_mads_are_no_cm_messages() {
    let good = Rtu::zeroed().to_mad(1);
    assert!(Message::parse(&good).is_some());
    let mut bad = good;
    bad.set_class_version(1);
    assert_eq!(Message::parse(&bad), None);
    let mut bad = good;
    bad.set_method(method::GET);
    assert_eq!(Message::parse(&bad), None);
    let mut bad = good;
    bad.set_mgmt_class(class::SUBN_ADM);
    assert_eq!(Message::parse(&bad), None);
    let mut odd = good;
    odd.set_attr_id(0x1b);
    assert_eq!(Message::parse(&odd), Some(Message::Unknown(0x1b)));
}

proptest! {
    #[test]
    fn any_bytes_parse_and_come_back(bytes in proptest::collection::vec(any::<u8>(), 232), which in 0x0fu16..0x1c) {
        let mut mad = Mad::new(class::CM, CLASS_VERSION, method::SEND, which, 3);
        mad.set_data(&bytes.clone().try_into().unwrap());
        let message = Message::parse(&mad).unwrap();
        let _ = format!("{message:?}");
        let back = match message {
            Message::Req(m) => m.to_mad(3),
            Message::Mra(m) => m.to_mad(3),
            Message::Rej(m) => m.to_mad(3),
            Message::Rep(m) => m.to_mad(3),
            Message::Rtu(m) => m.to_mad(3),
            Message::Dreq(m) => m.to_mad(3),
            Message::Drep(m) => m.to_mad(3),
            Message::SidrReq(m) => m.to_mad(3),
            Message::SidrRep(m) => m.to_mad(3),
            Message::Lap(m) => m.to_mad(3),
            Message::Apr(m) => m.to_mad(3),
            Message::Unknown(id) => {
                prop_assert!(!(0x10..=0x1a).contains(&id));
                mad
            }
        };
        prop_assert_eq!(back, mad);
    }

    #[test]
    fn setters_touch_their_field_only(bytes in proptest::collection::vec(any::<u8>(), 232), value: u32) {
        let raw: [u8; 232] = bytes.try_into().unwrap();
        let mut req = Req::from_bytes(raw);
        req.set_starting_psn(Psn::new(value)).set_path_mtu(value as u8).set_retry_count(value as u8);
        prop_assert_eq!(req.starting_psn().get(), value & 0xff_ffff);
        prop_assert_eq!(req.path_mtu(), value as u8 & 15);
        prop_assert_eq!(req.retry_count(), value as u8 & 7);
        let mut expected = raw;
        expected[44..47].copy_from_slice(&value.to_be_bytes()[1..]);
        expected[47] = raw[47] & 0xf8 | value as u8 & 7;
        expected[50] = raw[50] & 0x0f | (value as u8) << 4;
        prop_assert_eq!(req.as_bytes(), &expected);
    }
}
