//! Completions looked at before the consumer takes them: notification, failures, confirmations.

use driver_mlx::{Bar, Platform, QpNumber};

use crate::adapter::Adapter;
use crate::base::event::AsyncError;
use crate::base::handle::{EvdHandle, Handle};
use crate::evd::queue::EventPool;
use crate::evd::reaction::{Meaning, Reaction};
use crate::evd::{Evd, Notification, is_due};
use crate::srq::queue::Srq;

/// Completions of one EVD looked at in one poll.
const LOOKS: u32 = 256;

impl<'s, P: Platform> Adapter<'s, P> {
    /// Looks at the completions of every EVD whose CQ would not notify of them.
    pub(crate) fn look_at_evds(&mut self) {
        for _ in 0..self.objects.evds_mut().looked() {
            let Some(slot) = self.objects.evds_mut().next_looked() else { return };
            self.progress.visit();
            if self.objects.table::<EvdHandle>().at(slot).is_some_and(|evd| evd.reserved > 0) {
                self.look_ahead(slot, LOOKS);
            }
            self.objects.evds_mut().leave_resting(slot);
        }
    }

    /// Looks at completions not yet looked at, at most `limit`: failures take effect, deliverable ones are counted.
    pub(crate) fn look_ahead(&mut self, slot: u16, limit: u32) {
        for _ in 0..limit {
            let Some(evd) = self.objects.table::<EvdHandle>().at(slot) else { return };
            let Some(cq) = &evd.cq else { return };
            let watched = evd.wait.is_some() || evd.cno.is_some();
            let meaning = match cq.peek(evd.looks.ahead()) {
                Ok(None) => return,
                Ok(Some(completion)) => {
                    let index = completion.user_index() as u16;
                    let (meaning, act) = match self.objects.eps().at(index) {
                        Some(ep) if ep.owns(&completion) => {
                            // Only a wait or a CNO asks; without one the marks need not be looked up.
                            let meaning = if watched { ep.meaning(&completion) } else { Meaning::Nothing };
                            (meaning, ep.reaction(&completion))
                        }
                        _ => (Meaning::Nothing, Reaction::None),
                    };
                    let special = completion.solicited() || completion.error().is_some();
                    self.connections().react(index, act);
                    (meaning, special)
                }
                Err(_) => (Meaning::Nothing, false),
            };
            let Some(evd) = self.objects.table_mut::<EvdHandle>().at_mut(slot) else { return };
            let notifies = match meaning {
                (Meaning::Deliver { unsignalled }, special) => Some(match evd.notification {
                    Notification::Threshold => true,
                    Notification::Unsignalled => !unsignalled,
                    Notification::Solicited => special,
                }),
                _ => None,
            };
            if watched {
                evd.looks.look(notifies);
            } else {
                evd.looks.glance();
            }
            self.progress.visit();
            let seen = evd.position();
            self.progress.set_happened();
            // Where nobody asks what notifies, everything that came is reported.
            let mut arrived = !watched;
            if let Some(notifies) = notifies {
                let news = !is_due(seen, evd.announced);
                if news {
                    evd.announced = seen;
                }
                arrived |= notifies && news;
            }
            if arrived && let Some(handle) = self.objects.table().handle_at(slot) {
                self.delivery().arrived(handle);
            }
        }
    }

    /// A completion that the device cannot have meant: counted, and reported once.
    #[cold]
    pub(crate) fn bad_completion(&mut self) {
        if self.progress.count_bad() {
            self.delivery().post_async(None, AsyncError::ProviderInternalError, Handle::from_bits(0), 0);
        }
    }
}

impl<B: Bar> Evd<B> {
    /// Forgets the completions of a QP that is gone from the CQ. Completions of receives release their buffers to `srq`.
    pub(crate) fn sweep(&mut self, events: &mut EventPool<'_>, qpn: QpNumber, srq: Option<&mut Srq>) {
        let Some(cq) = &mut self.cq else { return };
        if let Some(srq) = srq {
            srq.take_back(cq, qpn);
        }
        // Entries that stay move up over those that go, so whatever counted entries before a place counts those moved past it
        // as well.
        let consumed = self.looks.taken();
        let gone_from = |position: u32| {
            let mut gone = 0;
            let mut ahead = position.wrapping_sub(consumed);
            if ahead as i32 > 0 || position == consumed {
                while let Ok(Some(completion)) = cq.peek(ahead) {
                    gone += u32::from(completion.qpn() == qpn);
                    ahead += 1;
                }
            }
            gone
        };
        let all = gone_from(consumed);
        if all == 0 {
            return;
        }
        events.reposition(&self.queue, |follows| follows.wrapping_add(gone_from(follows)));
        let announced = self.announced.wrapping_add(gone_from(self.announced));
        let removed = cq.sweep(qpn);
        self.announced = announced;
        self.looks.dropped(removed);
        // What was looked at is looked at again, which changes nothing.
        self.looks.look_again();
    }
}
