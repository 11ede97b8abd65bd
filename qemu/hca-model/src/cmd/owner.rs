//! Whose an object is: the user (uid) in whose name it was made, and nobody else's. User 0 is the kernel, which may name all; what is made
//! for user 0xffff is everybody's, and what the kernel made for itself can be referred to (as a default, by queues) but not changed.

use super::devx::{CQ_RECORD, CQ_RING, QP_RECORD, QP_RING, WQ_RECORD, WQ_RING};
use super::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::object::owners::{KERNEL, Kind};
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{cqc, mkc, qpc, rmpc};
use mlx5_prm::opcode::Opcode;

/// The user that stands for everybody.
pub(super) const SHARED_UID: u32 = 0xffff;
/// Where nearly all commands name their object, and answer its number.
const NUMBER: Field = Field::bits(0x08, 23, 0);

/// What a command does with the object that it is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Make,
    Use,
    End,
}

/// The object that a command is about.
fn object(opcode: Opcode) -> Option<(Kind, Deed, Field)> {
    use Deed::{End, Make, Use};
    let (kind, deed) = match opcode {
        Opcode::ALLOC_UAR => (Kind::Uar, Make),
        Opcode::DEALLOC_UAR => (Kind::Uar, End),
        Opcode::ALLOC_PD => (Kind::Pd, Make),
        Opcode::DEALLOC_PD => (Kind::Pd, End),
        Opcode::ALLOC_TRANSPORT_DOMAIN => (Kind::TransportDomain, Make),
        Opcode::DEALLOC_TRANSPORT_DOMAIN => (Kind::TransportDomain, End),
        Opcode::ALLOC_XRCD => (Kind::Xrcd, Make),
        Opcode::DEALLOC_XRCD => (Kind::Xrcd, End),
        Opcode::CREATE_EQ => (Kind::Eq, Make),
        Opcode::DESTROY_EQ => (Kind::Eq, End),
        Opcode::QUERY_EQ => (Kind::Eq, Use),
        Opcode::CREATE_CQ => (Kind::Cq, Make),
        Opcode::DESTROY_CQ => (Kind::Cq, End),
        Opcode::MODIFY_CQ | Opcode::QUERY_CQ => (Kind::Cq, Use),
        Opcode::CREATE_QP => (Kind::Qp, Make),
        Opcode::DESTROY_QP => (Kind::Qp, End),
        Opcode::RST2INIT_QP
        | Opcode::INIT2INIT_QP
        | Opcode::INIT2RTR_QP
        | Opcode::RTR2RTS_QP
        | Opcode::RTS2RTS_QP
        | Opcode::SQERR2RTS_QP
        | Opcode::SQD_RTS_QP
        | Opcode::QP_2ERR
        | Opcode::QP_2RST
        | Opcode::QUERY_QP
        | Opcode::ATTACH_TO_MCG
        | Opcode::DETACH_FROM_MCG => (Kind::Qp, Use),
        Opcode::CREATE_SRQ | Opcode::CREATE_XRC_SRQ | Opcode::CREATE_RMP => (Kind::Srq, Make),
        Opcode::DESTROY_SRQ | Opcode::DESTROY_XRC_SRQ | Opcode::DESTROY_RMP => (Kind::Srq, End),
        Opcode::QUERY_SRQ
        | Opcode::QUERY_XRC_SRQ
        | Opcode::QUERY_RMP
        | Opcode::MODIFY_RMP
        | Opcode::ARM_RQ
        | Opcode::ARM_XRC_SRQ => (Kind::Srq, Use),
        Opcode::CREATE_MKEY => (Kind::Mkey, Make),
        Opcode::DESTROY_MKEY => (Kind::Mkey, End),
        Opcode::QUERY_MKEY => (Kind::Mkey, Use),
        Opcode::CREATE_UMEM => (Kind::Umem, Make),
        Opcode::DESTROY_UMEM => (Kind::Umem, End),
        Opcode::ALLOC_Q_COUNTER => (Kind::Counters, Make),
        Opcode::DEALLOC_Q_COUNTER => (Kind::Counters, End),
        Opcode::QUERY_Q_COUNTER => return Some((Kind::Counters, Use, query_q_counter_in::counter_set_id)),
        _ => return None,
    };
    Some((kind, deed, NUMBER))
}

/// What a context refers to: in which part of the input, by which field, and which bit says that it does.
type Reference = (Kind, usize, Field, Option<Field>);

const CQ: usize = create_cq_in::cq_context.offset;
const QP: usize = create_qp_in::qpc.offset;
const RMP_QUEUE: usize = create_rmp_in::ctx.offset + rmpc::wq.offset;
const MKEY: usize = create_mkey_in::memory_key_mkey_entry.offset;

const fn memory(naming: &super::devx::Naming, at: usize) -> Reference {
    (Kind::Umem, at, naming.id, Some(naming.valid))
}

fn references(opcode: Opcode) -> &'static [Reference] {
    match opcode {
        Opcode::CREATE_CQ => {
            const { &[(Kind::Uar, CQ, cqc::uar_page, None), memory(&CQ_RECORD, CQ), memory(&CQ_RING, 0)] }
        }
        Opcode::MODIFY_CQ => const { &[memory(&CQ_RING, 0)] },
        Opcode::CREATE_QP => {
            const {
                &[
                    (Kind::Pd, QP, qpc::pd, None),
                    (Kind::Uar, QP, qpc::uar_page, None),
                    (Kind::Cq, QP, qpc::cqn_snd, None),
                    (Kind::Cq, QP, qpc::cqn_rcv, None),
                    (Kind::Srq, QP, qpc::srqn_rmpn_xrqn, None),
                    memory(&QP_RECORD, QP),
                    memory(&QP_RING, 0),
                ]
            }
        }
        Opcode::CREATE_RMP => const { &[memory(&WQ_RECORD, RMP_QUEUE), memory(&WQ_RING, RMP_QUEUE)] },
        Opcode::CREATE_MKEY => const { &[(Kind::Pd, MKEY, mkc::pd, None)] },
        _ => &[],
    }
}

fn user_of(input: &[u8]) -> u32 {
    create_cq_in::uid.get32(input)
}

fn foreign(kind: Kind, number: u32, uid: u32) -> Refusal {
    let mut refusal = Refusal::missing("uid", number);
    refusal.text = format!("{kind:?} {number:#x} is not user {uid}'s");
    refusal
}

impl Device {
    /// What a command names is its user's, or the kernel gives it.
    pub(super) fn check_owner(&self, opcode: Opcode, input: &[u8]) -> Outcome {
        let uid = user_of(input);
        if uid == KERNEL || uid == SHARED_UID {
            return Ok(());
        }
        if let Some((kind, Deed::Use | Deed::End, number)) = object(opcode) {
            let number = number.get32(input);
            if ![uid, SHARED_UID].contains(&self.objects.owners.of(kind, number)) {
                return Err(foreign(kind, number, uid));
            }
        }
        for (kind, at, field, valid) in references(opcode) {
            let Some(context) = input.get(*at..) else { continue };
            if valid.is_some_and(|valid| !valid.is_set(context)) {
                continue;
            }
            let number = field.get32(context);
            // What the kernel made for itself serves as a default.
            if ![uid, KERNEL, SHARED_UID].contains(&self.objects.owners.of(*kind, number)) {
                return Err(foreign(*kind, number, uid));
            }
        }
        Ok(())
    }

    /// A command was carried out: what it made is its user's, and what it ended nobody's.
    pub(super) fn note_owner(&mut self, opcode: Opcode, input: &[u8], output: &[u8]) {
        match object(opcode) {
            Some((kind, Deed::Make, _)) => {
                self.objects.owners.set(kind, NUMBER.get32(output), user_of(input));
            }
            Some((kind, Deed::End, number)) => self.objects.owners.set(kind, number.get32(input), KERNEL),
            _ => {}
        }
    }
}
