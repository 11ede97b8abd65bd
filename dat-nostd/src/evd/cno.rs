//! A consumer notification object.

use driver_mlx::Instant;

use crate::base::handle::{CnoHandle, EvdHandle, IaHandle};
use crate::base::list::{Link, Linked};
use crate::evd::upcall::ProxyAgent;

/// The list of CNOs whose agent is to be called.
#[derive(Debug)]
pub(crate) struct Called;

/// The list of CNOs that triggered, or whose wait is due, since the consumer was last told.
#[derive(Debug)]
pub(crate) struct ReadyCno;

/// The list of CNOs on which a wait with a time-out is open.
#[derive(Debug)]
pub(crate) struct WaitedCno;

/// A consumer notification object.
#[derive(Debug)]
pub struct Cno {
    pub(crate) ia: IaHandle,
    pub(crate) agent: Option<ProxyAgent>,
    /// The EVD that triggered first since the last wait took it.
    pub(crate) triggered: Option<EvdHandle>,
    /// The EVD that triggered first since the agent was last called; one call stands for all triggers till then.
    pub(crate) call: Option<EvdHandle>,
    /// The CNO is gone for its consumer, who knew it by this handle; it is here until its agent has been called for the last time.
    pub(crate) gone: Option<CnoHandle>,
    /// How often all waiters were released because the last EVD went away; circular.
    pub(crate) releases: u32,
    /// The earliest time-out of its waiters, nanoseconds; may be that of one that waits no more.
    pub(crate) deadline: Instant,
    /// EVDs that feed it.
    pub(crate) users: u32,
    called: Link<Called>,
    ready: Link<ReadyCno>,
    waited: Link<WaitedCno>,
}

impl Cno {
    pub(crate) fn new(ia: IaHandle, agent: Option<ProxyAgent>) -> Self {
        Self {
            ia,
            agent,
            triggered: None,
            call: None,
            gone: None,
            releases: 0,
            deadline: Instant::MAX,
            users: 0,
            called: Link::OUT,
            ready: Link::OUT,
            waited: Link::OUT,
        }
    }

    /// What is left of a CNO that is gone: its agent's last call.
    pub(crate) fn last_call(handle: CnoHandle, ia: IaHandle, agent: ProxyAgent) -> Self {
        let mut cno = Self::new(ia, Some(agent));
        cno.gone = Some(handle);
        cno
    }

    /// An EVD triggers; whether the agent is to be called. Further triggers are absorbed until the first is taken.
    pub(crate) fn trigger(&mut self, evd: EvdHandle) -> bool {
        self.triggered.get_or_insert(evd);
        if self.agent.is_some() {
            self.call.get_or_insert(evd);
        }
        self.agent.is_some()
    }

    /// An EVD feeds it no more. With the last one nothing can come: all waiters are released.
    pub(crate) fn detach(&mut self) -> bool {
        self.users = self.users.saturating_sub(1);
        if self.users == 0 {
            self.releases = self.releases.wrapping_add(1);
        }
        self.users == 0
    }
}

impl Linked<Called> for Cno {
    fn link(&mut self) -> &mut Link<Called> {
        &mut self.called
    }
}

impl Linked<ReadyCno> for Cno {
    fn link(&mut self) -> &mut Link<ReadyCno> {
        &mut self.ready
    }
}

impl Linked<WaitedCno> for Cno {
    fn link(&mut self) -> &mut Link<WaitedCno> {
        &mut self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(_: &mut dyn crate::evd::upcall::AgentCalls, _: u64, _: Option<EvdHandle>) {}

    #[test]
    fn triggers_are_absorbed_until_they_are_taken() {
        let [a, b] = [3, 4].map(EvdHandle::from_bits);
        let mut cno = Cno::new(IaHandle::from_bits(1), None);
        assert!(!cno.trigger(a) && !cno.trigger(b));
        assert_eq!((cno.triggered.take(), cno.call), (Some(a), None));
        cno.agent = Some(ProxyAgent { function: agent, instance_data: 0 });
        assert!(cno.trigger(b) && cno.trigger(a));
        assert_eq!((cno.triggered, cno.call), (Some(b), Some(b)));
    }

    #[test]
    fn the_last_evd_releases() {
        let mut cno = Cno::new(IaHandle::from_bits(1), None);
        cno.users = 2;
        assert!(!cno.detach());
        assert_eq!(cno.releases, 0);
        assert!(cno.detach());
        assert_eq!(cno.releases, 1);
    }
}
