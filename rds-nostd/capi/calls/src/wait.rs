//! Calls that block.

use crate::failure::{Answer, Failure};
use crate::node::{Node, State};
use crate::socket::Descriptor;
use dat_nostd::Duration;
use rds_nostd::{RdsError, SocketHandle};

/// Returns whether a retry may succeed.
fn may_pass(failure: Failure) -> bool {
    let Failure::Rds(error) = failure else { return false };
    matches!(error, RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested)
}

/// Limit of [`finish`]: the protocol breaks a connection after 100 ms without completions.
const LIMIT: Duration = Duration::from_secs(1);

/// Repeats a call on a socket while the HCA may access memory of the socket: C programs free it
/// after the call. The lock is free between attempts, so that other threads go on. Returns the lock
/// and the result of the last attempt, which is [`RdsError::Again`] if the HCA has failed.
///
/// # Errors
/// [`RdsError::BadSocket`]: another thread closed the socket or the device.
pub(crate) fn finish<'n, N: Node>(
    node: &'n N,
    mut guard: N::Guard<'n>,
    fd: i32,
    mut call: impl FnMut(&mut State<'_, N>, SocketHandle) -> Answer<()>,
) -> Answer<(N::Guard<'n>, Answer<()>)> {
    let mut begun = None;
    loop {
        let mut state = N::state(&mut guard);
        let (handle, now) = (state.socket(fd)?.handle, state.adapter.now());
        let (socket, until) = *begun.get_or_insert((handle, now + LIMIT));
        if socket != handle {
            return Err(RdsError::BadSocket.into());
        }
        let done = call(&mut state, handle);
        if done != Err(RdsError::Again.into()) || state.adapter.is_dead() || now >= until {
            return Ok((guard, done));
        }
        guard = node.nap(guard).ok_or(RdsError::BadSocket)?;
    }
}

/// Makes a call on a socket, and repeats it until it succeeds, unless the call or the socket is
/// non-blocking.
pub(crate) fn until<N: Node, R>(
    node: &N,
    fd: i32,
    dont_wait: bool,
    mut call: impl FnMut(&mut State<'_, N>, SocketHandle) -> Answer<R>,
) -> Answer<R> {
    let mut guard = node.lock().ok_or(RdsError::BadSocket)?;
    let mut socket = N::resumed();
    loop {
        let mut state = N::state(&mut guard);
        let handle = state.socket(fd)?.handle;
        // A new socket may have reused the number of one that was closed meanwhile.
        let is_first = socket.is_none();
        if *socket.get_or_insert(handle) != handle {
            return Err(RdsError::BadSocket.into());
        }
        let answer = call(&mut state, handle).map_err(|failure| match state.usable() {
            Err(gone) if may_pass(failure) => gone.into(),
            _ => state.why(failure),
        });
        let waits = match &answer {
            Err(failure) => {
                may_pass(*failure) && !dont_wait && !state.socket(fd)?.descriptor.is_nonblocking()
            }
            Ok(_) => false,
        };
        if !waits {
            state.look(fd);
            node.changed(guard);
            return answer;
        }
        if is_first {
            // Once is enough: a repeated call that fails leaves no new work.
            node.changed(guard);
            guard = node.lock().ok_or(RdsError::BadSocket)?;
            continue;
        }
        let now = state.adapter.now();
        guard = node.sleep(guard, handle, now)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Iovs;
    use crate::node::Sockets;
    use crate::socket::Socket;
    use dat_nostd::Instant;
    use harness::ModelPlatform;
    use harness::rds::Nodes;
    use rds_nostd::Profile;
    use std::boxed::Box;
    use std::cell::{RefCell, RefMut};

    struct Number;

    impl Descriptor for Number {
        fn is_nonblocking(&self) -> bool {
            false
        }

        fn set_nonblocking(&mut self, _on: bool) {}

        fn raise(&mut self) {}

        fn lower(&mut self) {}
    }

    /// Table with a single socket, descriptor 3.
    struct One(Socket<Number>);

    impl Sockets<Number> for One {
        fn get(&mut self, fd: i32) -> Option<&mut Socket<Number>> {
            (fd == 3).then_some(&mut self.0)
        }

        fn add(&mut self, _: impl FnOnce(Number) -> Socket<Number>, _: bool) -> Result<i32, RdsError> {
            Err(RdsError::TooManySockets)
        }

        fn remove(&mut self, _fd: i32, _later: Option<SocketHandle>) {}
    }

    struct Inner {
        nodes: Nodes,
        sockets: One,
        iovs: Box<Iovs>,
        naps: u32,
        /// Another thread's socket, which gets the number in the first nap.
        successor: Option<SocketHandle>,
    }

    struct Fake(RefCell<Inner>);

    impl Node for Fake {
        type Platform = ModelPlatform;
        type Descriptor = Number;
        type Sockets = One;
        type Guard<'n> = RefMut<'n, Inner>;

        fn state<'g>(guard: &'g mut RefMut<'_, Inner>) -> State<'g, Self> {
            let Inner { nodes, sockets, iovs, .. } = &mut **guard;
            let (adapter, rds) = (&mut nodes.adapters[0], &mut nodes.rds[0]);
            State { adapter, rds, sockets, whole: &mut [], iovs, is_gone: false, is_failed: false }
        }

        fn open() -> Result<&'static Self, RdsError> {
            Err(RdsError::NoDevice)
        }

        fn of(_fd: i32) -> Option<&'static Self> {
            None
        }

        fn lock(&self) -> Option<RefMut<'_, Inner>> {
            self.0.try_borrow_mut().ok()
        }

        fn changed(&self, guard: RefMut<'_, Inner>) {
            drop(guard);
        }

        fn closed(&self, guard: RefMut<'_, Inner>) {
            drop(guard);
        }

        fn sleep<'n>(
            &'n self,
            guard: RefMut<'n, Inner>,
            _socket: SocketHandle,
            _now: Instant,
        ) -> Answer<RefMut<'n, Inner>> {
            Ok(guard)
        }

        fn nap<'n>(&'n self, guard: RefMut<'n, Inner>) -> Option<RefMut<'n, Inner>> {
            drop(guard);
            let mut guard = self.lock()?;
            guard.naps += 1;
            guard.nodes.world.pass(100_000_000);
            if let Some(successor) = guard.successor.take() {
                guard.sockets.0.handle = successor;
            }
            Some(guard)
        }
    }

    /// Runs `call` on a fake node and returns the node.
    fn with_node(successor: bool, call: impl FnOnce(&Fake)) -> Nodes {
        let mut nodes = Nodes::new(1, "none");
        let [socket, other] = [0, 1].map(|_| nodes.rds[0].socket().expect("room"));
        let sockets = One(Socket::new(socket, Profile::Linux, Number));
        let successor = successor.then_some(other);
        let fake = Fake(RefCell::new(Inner { nodes, sockets, iovs: Box::default(), naps: 0, successor }));
        call(&fake);
        fake.0.into_inner().nodes
    }

    #[test]
    fn calls_repeat_until_they_end() {
        let again = || Err(RdsError::Again.into());
        let nodes = with_node(false, |node| {
            let mut left = 3;
            let (guard, done) = finish(node, node.lock().unwrap(), 3, |_, _| {
                left -= 1;
                if left == 0 { Err(RdsError::Exhausted.into()) } else { again() }
            })
            .unwrap();
            assert_eq!((done, guard.naps), (Err(RdsError::Exhausted.into()), 2));
            let (guard, done) = finish(node, guard, 3, |_, _| again()).unwrap();
            assert_eq!((done, guard.naps), (again(), 2 + 10), "one second");
            assert_eq!(finish(node, guard, 4, |_, _| Ok(())).err(), Some(RdsError::BadSocket.into()));
        });
        nodes.close();
    }

    #[test]
    fn a_number_that_is_anothers_ends_the_wait() {
        let nodes = with_node(true, |node| {
            let mut calls = 0;
            let done = finish(node, node.lock().unwrap(), 3, |_, _| {
                calls += 1;
                Err(RdsError::Again.into())
            });
            assert_eq!((done.err(), calls), (Some(RdsError::BadSocket.into()), 1));
        });
        nodes.close();
    }
}
