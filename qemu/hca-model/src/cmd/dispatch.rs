//! From an input to the handler of its opcode.

use super::check;
use super::refusal::Refusal;
use super::table::{Call, Command, command};
use crate::device::{Device, Life};
use crate::log::Subject;
use crate::seams::Io;
use mlx5_prm::cmd::cmd_in;
use mlx5_prm::commands::{destroy_cq_in, destroy_eq_in, destroy_qp_in, qp_2rst_in};
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use std::borrow::Cow;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The output holds the answer, good or bad.
    Done,
    /// It needs pages and waits for them.
    WaitForPages,
    /// It never completes (a fault ordered by the profile).
    Never,
}

impl Device {
    /// Carries out one command. `output` is then at most `output_len` bytes of answer.
    pub(super) fn execute(
        &mut self,
        io: &mut Io<'_>,
        input: &[u8],
        output_len: usize,
        output: &mut Vec<u8>,
    ) -> Verdict {
        let opcode = Opcode::of(input);
        if self.profile.misbehaviour.stall_command == Some(opcode) {
            return Verdict::Never;
        }
        let outcome = match self.admit(opcode, input, output_len) {
            Ok((command, _)) if self.waits_for_pages(opcode, &command) => {
                if self.pages.refused {
                    self.pages.refused = false;
                    let text =
                        format!("{} pages at hand, {} needed", self.pages.given(), self.pages.needed());
                    self.update_needed_pages();
                    Err(Refusal::new(CmdStatus::NO_RES, "manage_pages_in.input_num_entries", text))
                } else {
                    self.request_pages(io);
                    return Verdict::WaitForPages;
                }
            }
            Ok((command, input)) => {
                let size = opcode.output_layout().map_or(16, |layout| layout.size);
                output.clear();
                output.resize(size.max(16), 0);
                let op_mod = cmd_in::op_mod.get32(&input) as u16;
                if self.profile.habits.adversary.late_dma {
                    self.write_late(io, opcode, &input);
                }
                let call = Call { io: &mut *io, opcode, op_mod, input: &input, output, output_len };
                let handled = (command.run)(self, call);
                if handled.is_ok() {
                    self.note_owner(&command, &input, output);
                }
                self.profile.habits.amend(opcode, &input, output);
                handled
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = outcome {
            self.refused.count(refusal.status);
            let subject = refusal.answer(opcode, output);
            self.log.refuse(subject, refusal.field, refusal.text);
        }
        if self.life == Life::Initialized {
            self.update_needed_pages();
            self.request_pages(io);
        }
        Verdict::Done
    }

    /// All checks that come before a command's own. Answers what it is, and its input as it is to be understood.
    fn admit<'a>(
        &mut self,
        opcode: Opcode,
        input: &'a [u8],
        output_len: usize,
    ) -> Result<(Command, Cow<'a, [u8]>), Refusal> {
        let known = command(opcode).filter(|command| !command.ethernet || self.profile.card.is_ethernet());
        let Some(command) = known else {
            return Err(Refusal::new(CmdStatus::BAD_OP, "opcode", "not supported"));
        };
        let mut remarks = Vec::new();
        let shaped = check::shape(opcode, &command, input, output_len, self.profile.strictness, &mut remarks);
        for (field, text) in remarks {
            self.log.warn(Subject::Tolerated { opcode }, field, text);
        }
        let input = shaped?;
        check::state(opcode, &command, self.life)?;
        let op_mod = cmd_in::op_mod.get32(&input) as u16;
        if op_mod != 0 && !command.modified {
            return Err(Refusal::op_mod(op_mod));
        }
        self.check_user(&input)?;
        self.check_owner(opcode, &command, &input)?;
        Ok((command, self.profile.habits.admit(opcode, input, self.issi)?))
    }

    /// Writes once more to what the command is about to end.
    #[cold]
    fn write_late(&mut self, io: &mut Io<'_>, opcode: Opcode, input: &[u8]) {
        let queues = &mut self.objects.queues;
        match opcode {
            Opcode::DESTROY_CQ => {
                if let Some(cq) = queues.cqs.get_mut(destroy_cq_in::cqn.get32(input)) {
                    cq.write_late(io);
                }
            }
            Opcode::DESTROY_EQ => {
                if let Some(eq) = queues.eqs.get(destroy_eq_in::eq_number.get32(input)) {
                    eq.write_late(io);
                }
            }
            Opcode::DESTROY_QP => self.write_next_receive(io, destroy_qp_in::qpn.get32(input)),
            Opcode::QP_2RST => self.write_next_receive(io, qp_2rst_in::qpn.get32(input)),
            _ => {}
        }
    }

    /// Whether a command cannot be carried out before pages come, or was told that none will.
    fn waits_for_pages(&mut self, opcode: Opcode, command: &Command) -> bool {
        if command.paged {
            return !self.pages_suffice();
        }
        // A hungry card's other commands wait too, where somebody listens and has not said no.
        self.hungers_during(opcode)
            && self.tells_page_requests()
            && !self.pages_suffice_for(0)
            && !self.pages.refused
    }

    /// Whether a driver hears of page requests.
    pub(crate) fn tells_page_requests(&self) -> bool {
        self.objects.queues.eqs.iter().any(|(_, eq)| eq.takes(EventType::PAGE_REQUEST))
    }

    /// Sends a page request event where one is due.
    pub(super) fn request_pages(&mut self, io: &mut Io<'_>) {
        if !self.tells_page_requests() {
            return;
        }
        let surplus = self.profile.growth_pages.saturating_mul(2);
        let Some(pages) = self.pages.request(surplus) else { return };
        let mut data = [0; 28];
        data[..4].copy_from_slice(&self.profile.habits.page_owner());
        data[4..8].copy_from_slice(&pages.to_be_bytes());
        self.objects.queues.event(io, &mut self.log, EventType::PAGE_REQUEST, 0, &data);
    }
}
