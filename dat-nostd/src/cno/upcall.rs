//! Upcalls: what a proxy agent is, what it may call, and how it is called.

use crate::base::event::Event;
use crate::base::handle::{CnoHandle, EpHandle, EvdHandle, IaHandle, RmrHandle, SrqHandle};
use crate::base::ret::DatResult;
use crate::base::types::{CompletionFlags, LmrTriplet, MemPriv, RmrTriplet};

/// `DAT_OS_WAIT_PROXY_AGENT`: called when the CNO triggers, with the EVD that did it, or with none when the CNO goes away.
///
/// It is called once: an agent that wants the next trigger too asks for it with [`AgentCalls::cno_modify_agent`], and does so before it
/// takes events, so that none can arrive unnoticed in between.
#[derive(Clone, Copy, Debug)]
pub struct ProxyAgent {
    /// Called outside any other call, with the adapter to post to, [`ProxyAgent::instance_data`] and the EVD. Must not block.
    pub function: fn(&mut dyn AgentCalls, u64, Option<EvdHandle>),
    /// Second argument of the function.
    pub instance_data: u64,
}

impl PartialEq for ProxyAgent {
    fn eq(&self, other: &Self) -> bool {
        self.instance_data == other.instance_data && core::ptr::fn_addr_eq(self.function, other.function)
    }
}

impl Eq for ProxyAgent {}

/// A call of an agent that is due, from [`Adapter::next_upcall`](crate::Adapter::next_upcall).
#[must_use = "the agent is called by `run`, and not again if that is left out"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upcall {
    /// The CNO that triggered; not valid any more if it is gone.
    pub cno: CnoHandle,
    /// The CNO's IA; closed if it is not valid any more.
    pub ia: IaHandle,
    /// Whom to call.
    pub agent: ProxyAgent,
    /// The EVD that triggered first, which may be gone meanwhile; none if the CNO is gone.
    pub evd: Option<EvdHandle>,
}

impl Upcall {
    /// Calls the agent.
    pub fn run(self, adapter: &mut dyn AgentCalls) {
        (self.agent.function)(adapter, self.agent.instance_data, self.evd);
    }
}

/// The signatures of what an agent may call, for the trait and for its one implementation.
macro_rules! agent_calls {
    ($each:ident) => {
        $each! {
            ep_post_send(ep: EpHandle, iov: &[LmrTriplet], user_cookie: u64, flags: CompletionFlags) -> DatResult<()>;
            ep_post_recv(ep: EpHandle, iov: &[LmrTriplet], user_cookie: u64, flags: CompletionFlags) -> DatResult<()>;
            ep_post_rdma_read(
                ep: EpHandle, iov: &[LmrTriplet], user_cookie: u64, remote: &RmrTriplet, flags: CompletionFlags
            ) -> DatResult<()>;
            ep_post_rdma_write(
                ep: EpHandle, iov: &[LmrTriplet], user_cookie: u64, remote: &RmrTriplet, flags: CompletionFlags
            ) -> DatResult<()>;
            rmr_bind(
                rmr: RmrHandle, triplet: &LmrTriplet, mem_priv: MemPriv,
                ep: EpHandle, user_cookie: u64, flags: CompletionFlags
            ) -> DatResult<u32>;
            srq_post_recv(srq: SrqHandle, iov: &[LmrTriplet], user_cookie: u64) -> DatResult<()>;
            evd_dequeue(evd: EvdHandle) -> DatResult<Event>;
            evd_post_se(evd: EvdHandle, value: u64) -> DatResult<()>;
            cno_modify_agent(cno: CnoHandle, agent: Option<ProxyAgent>) -> DatResult<()>;
        }
    };
}
pub(crate) use agent_calls;

macro_rules! declare {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The calls that an agent may make: of those that the specification allows in an upcall, posts and dequeues.
        /// Each is the [`Adapter`](crate::Adapter)'s method of that name.
        #[allow(missing_docs)]
        pub trait AgentCalls {
            $(fn $name(&mut self, $($argument: $type),*) -> $result;)*
        }
    };
}
agent_calls! { declare }
