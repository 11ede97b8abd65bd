//! Whose an object is: the user (uid) in whose name it was made, and nobody else's. User 0 is the kernel, which may name all; what is made
//! for user 0xffff is everybody's, and what the kernel made for itself can be referred to (as a default, by queues) but not changed.

use super::devx::{CQ_RECORD, CQ_RING, QP_RECORD, QP_RING, WQ_RECORD, WQ_RING};
use super::refusal::{Outcome, Refusal};
use super::table::{Command, Deed};
use crate::device::Device;
use crate::object::owners::{KERNEL, Kind};
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{cqc, mkc, qpc, rmpc, rqc, sqc, tirc, wq};
use mlx5_prm::opcode::Opcode;

/// The user that stands for everybody.
pub(super) const SHARED_UID: u32 = 0xffff;

/// What a context refers to: in which part of the input, by which field, and which bit says that it does.
type Reference = (Kind, usize, Field, Option<Field>);

const CQ: usize = create_cq_in::cq_context.offset;
const QP: usize = create_qp_in::qpc.offset;
const RMP_QUEUE: usize = create_rmp_in::ctx.offset + rmpc::wq.offset;
const SQ: usize = create_sq_in::ctx.offset;
const SQ_QUEUE: usize = SQ + sqc::wq.offset;
const RQ: usize = create_rq_in::ctx.offset;
const RQ_QUEUE: usize = RQ + rqc::wq.offset;
const TIR: usize = create_tir_in::ctx.offset;
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
        Opcode::CREATE_SQ => {
            const {
                &[
                    (Kind::Cq, SQ, sqc::cqn, None),
                    (Kind::Tis, SQ, sqc::tis_num_0, Some(sqc::tis_num_0)),
                    (Kind::Pd, SQ_QUEUE, wq::pd, None),
                    (Kind::Uar, SQ_QUEUE, wq::uar_page, None),
                    memory(&WQ_RECORD, SQ_QUEUE),
                    memory(&WQ_RING, SQ_QUEUE),
                ]
            }
        }
        Opcode::CREATE_RQ => {
            const {
                &[
                    (Kind::Cq, RQ, rqc::cqn, None),
                    (Kind::Pd, RQ_QUEUE, wq::pd, None),
                    memory(&WQ_RECORD, RQ_QUEUE),
                    memory(&WQ_RING, RQ_QUEUE),
                ]
            }
        }
        Opcode::CREATE_TIR => {
            const {
                &[
                    (Kind::TransportDomain, TIR, tirc::transport_domain, None),
                    (Kind::Rq, TIR, tirc::inline_rqn, Some(tirc::inline_rqn)),
                    (Kind::Rqt, TIR, tirc::indirect_table, Some(tirc::indirect_table)),
                ]
            }
        }
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
    pub(super) fn check_owner(&self, opcode: Opcode, command: &Command, input: &[u8]) -> Outcome {
        let uid = user_of(input);
        if uid == KERNEL || uid == SHARED_UID {
            return Ok(());
        }
        if let Some((kind, Deed::Use | Deed::End, number)) = command.about {
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
            let mut number = field.get32(context);
            if *kind == Kind::Uar {
                number = self.objects.uars.page_number(number);
            }
            // What the kernel made for itself serves as a default.
            if ![uid, KERNEL, SHARED_UID].contains(&self.objects.owners.of(*kind, number)) {
                return Err(foreign(*kind, number, uid));
            }
        }
        Ok(())
    }

    /// A command was carried out: what it made is its user's, and what it ended nobody's.
    pub(super) fn note_owner(&mut self, command: &Command, input: &[u8], output: &[u8]) {
        match command.about {
            Some((kind, Deed::Make, number)) => {
                self.objects.owners.set(kind, number.get32(output), user_of(input));
            }
            Some((kind, Deed::End, number)) => self.objects.owners.set(kind, number.get32(input), KERNEL),
            _ => {}
        }
    }
}
