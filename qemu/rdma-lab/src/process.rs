//! Child processes and temporary files that never outlive the tool.
//!
//! Every child gets its own process group and dies with the tool (`PR_SET_PDEATHSIG`). Therefore
//! neither Ctrl-C nor SIGTERM nor a killed tool leaves a QEMU running. Sockets and temporary
//! directories are registered and removed on every exit except by SIGKILL.

use crate::error::{Error, IoContext, Result};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

type Hook = Box<dyn FnOnce() + Send>;

struct Registry {
    groups: BTreeSet<i32>,
    paths: BTreeSet<PathBuf>,
    hooks: Vec<Hook>,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { groups: BTreeSet::new(), paths: BTreeSet::new(), hooks: Vec::new() });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kill_group(group: i32) {
    if let Some(pid) = Pid::from_raw(group) {
        // An error means that the group has exited already.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

fn remove(path: &Path) {
    // A child that was just killed may still be writing below the path: try again until nothing is
    // left.
    for _ in 0..20 {
        match path.symlink_metadata() {
            Err(_) => return,
            Ok(found) if found.is_dir() => drop(std::fs::remove_dir_all(path)),
            Ok(_) => drop(std::fs::remove_file(path)),
        }
        if path.symlink_metadata().is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Registers `hook` for the exit of the tool, including exits by signal. The hook must not spawn
/// children or create temporary files.
pub fn before_exit(hook: impl FnOnce() + Send + 'static) {
    registry().hooks.push(Box::new(hook));
}

/// Kills every child, calls the hooks and removes every registered path. Called before the tool
/// exits.
pub fn clean_up() {
    let mut registry = registry();
    for group in std::mem::take(&mut registry.groups) {
        kill_group(group);
    }
    for hook in std::mem::take(&mut registry.hooks) {
        hook();
    }
    for path in std::mem::take(&mut registry.paths) {
        remove(&path);
    }
}

/// Installs handlers: SIGINT, SIGTERM and SIGHUP clean up and exit with 128 + the signal's number.
///
/// # Errors
/// The system rejects the handler.
pub fn clean_up_on_signals() -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ])
    .map_err(|error| Error::Program(format!("cannot handle signals: {error}")))?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                ENDING.store(true, Ordering::Release);
                clean_up();
                std::process::exit(128 + signal);
            }
        })
        .map_err(|error| Error::Program(format!("cannot start a thread: {error}")))?;
    Ok(())
}

/// True once a signal is ending the tool.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Returns immediately, or never if a signal is ending the tool. Errors of that phase follow from
/// the signal and must not be reported.
pub fn wait_if_ending() {
    while ENDING.load(Ordering::Acquire) {
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// Spawns a child on a thread that lives as long as the tool. The kernel sends the parent-death
/// signal when the spawning *thread* exits, not the process.
fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<SpawnRequest>();
        // If the thread does not start, the channel is closed and every spawn returns an error.
        let _ = std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (mut command, answer) in receiver {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (sender, receiver) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    spawner.send((command, sender)).map_err(|_| gone())?;
    receiver.recv().map_err(|_| gone())?
}

/// Scheduler statistics of a thread, from `/proc/PID/task/TID/schedstat` of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scheduling {
    /// Time on a processor.
    ran: Duration,
    /// Time in the run queue, ready but without a processor.
    waited: Duration,
}

impl Scheduling {
    fn parse(text: &str) -> Option<Self> {
        let mut nanoseconds =
            text.split_whitespace().map_while(|word| word.parse().ok().map(Duration::from_nanos));
        Some(Self { ran: nanoseconds.next()?, waited: nanoseconds.next()? })
    }
}

/// Returns the time that a hypervisor took away from this virtual machine's processors since boot,
/// as a mean of all processors. Returns 0 if Linux does not count it.
pub fn stolen_time() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stolen(&text).unwrap_or_default()
}

/// Parses the text of `/proc/stat`.
fn stolen(text: &str) -> Option<Duration> {
    /// Unit of `/proc/stat`: 1/100 s on every machine.
    const TICK: Duration = Duration::from_millis(10);
    let ticks: u32 = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()?;
    let processors = text.lines().skip(1).filter(|line| line.starts_with("cpu")).count();
    (TICK * ticks).checked_div(processors as u32)
}

/// A child in its own process group. Dropping it kills the complete group.
#[derive(Debug)]
pub struct Supervised {
    child: Child,
    group: i32,
}

impl Supervised {
    /// Starts `command`.
    ///
    /// # Errors
    /// The program does not exist or cannot be started.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let parent = rustix::process::getpid();
        command.process_group(0);
        // SAFETY: the closure runs between fork and exec and makes only the system calls prctl and
        // getppid; it takes no lock and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                if rustix::process::getppid() == Some(parent) {
                    Ok(())
                } else {
                    // The tool died before the request took effect.
                    Err(io::ErrorKind::BrokenPipe.into())
                }
            });
        }
        // Locked across the spawn, so that a signal cannot arrive between start and registration.
        let mut registry = registry();
        let child = spawn_on_lasting_thread(command)
            .map_err(|error| Error::Program(format!("cannot start {program}: {error}")))?;
        let group = child.id() as i32;
        registry.groups.insert(group);
        Ok(Self { child, group })
    }

    /// Returns the child, for its piped standard streams.
    pub fn streams(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the processor time of the child's threads whose names begin with `prefix`.
    ///
    /// # Errors
    /// The child has exited, or has no such thread.
    pub fn thread_time(&self, prefix: &str) -> Result<Duration> {
        match self.scheduling(prefix)?.iter().map(|thread| thread.ran).sum() {
            Duration::ZERO => Err(Error::Program(format!("no thread `{prefix}` of the child has run"))),
            sum => Ok(sum),
        }
    }

    /// Returns the longest time that a thread of the child waited for a processor while other
    /// programs used them all. Only threads whose names begin with `prefix` count. Returns 0 if the
    /// child has exited.
    pub fn thread_delay(&self, prefix: &str) -> Duration {
        let threads = self.scheduling(prefix).unwrap_or_default();
        threads.iter().map(|thread| thread.waited).max().unwrap_or_default()
    }

    fn scheduling(&self, prefix: &str) -> Result<Vec<Scheduling>> {
        let folder = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let tasks = std::fs::read_dir(&folder).context("cannot read", &folder)?;
        // Threads may exit meanwhile.
        let read = |path: &Path, file| std::fs::read_to_string(path.join(file)).unwrap_or_default();
        let named = tasks.flatten().filter(|task| read(&task.path(), "comm").starts_with(prefix));
        Ok(named.filter_map(|task| Scheduling::parse(&read(&task.path(), "schedstat"))).collect())
    }

    /// Returns the exit status if the child has exited.
    ///
    /// # Errors
    /// The system call fails.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        // Locked, so that no thread kills the group after its id was returned to the system.
        let mut registry = registry();
        let status =
            self.child.try_wait().map_err(|error| Error::Program(format!("cannot wait: {error}")))?;
        if status.is_some() {
            registry.groups.remove(&self.group);
        }
        Ok(status)
    }

    /// Waits for the child's exit until `deadline`. Returns `None` if it is still running then.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait_until(&mut self, deadline: Instant) -> Result<Option<ExitStatus>> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            std::thread::sleep(pause.min(deadline - now));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Kills the complete group and waits for the child's exit.
    pub fn kill(&mut self) {
        if let Ok(None) = self.try_wait() {
            kill_group(self.group);
            let _ = self.wait_until(Instant::now() + Duration::from_secs(10));
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A path that is removed on drop and when the tool exits.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// Takes ownership of `path`. A file or directory at this path is removed at the end.
    pub fn adopt(path: PathBuf) -> Self {
        registry().paths.insert(path.clone());
        Self { path }
    }

    /// Creates an empty directory below the system's temporary directory, for sockets, logs and
    /// guest scripts.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn folder(purpose: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mlx5-{purpose}-{}-{number}", std::process::id());
        let temporary = Self::adopt(std::env::temp_dir().join(name));
        // An existing directory is left over from a killed run with the same process id.
        remove(&temporary.path);
        std::fs::create_dir(&temporary.path).context("cannot create", &temporary.path)?;
        Ok(temporary)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Releases ownership, so that the path is not removed.
    pub fn keep(self) -> PathBuf {
        registry().paths.remove(&self.path);
        self.path.clone()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if registry().paths.remove(&self.path) {
            remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_share_a_processor_wait_for_it() {
        let spin = || {
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", "0", "sh", "-c", "while :; do :; done"]);
            Supervised::spawn(command).expect("taskset is part of every Debian")
        };
        let children = [spin(), spin()];
        let enough = Duration::from_millis(200);
        while children.iter().any(|child| child.thread_time("").unwrap_or_default() < enough) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Each thread waited while the other ran.
        for child in &children {
            let waited = child.thread_delay("");
            assert!(waited >= enough / 4, "{waited:?}");
            assert_eq!(child.thread_delay("another name"), Duration::ZERO);
        }
    }

    #[test]
    fn stolen_time_is_a_mean_of_all_processors() {
        let text =
            "cpu  1 2 3 4 5 6 7 800 9 10\ncpu0 1 2 3 4 5 6 7 300 9 10\ncpu1 1 2 3 4 5 6 7 500 9 10\nintr 5\n";
        assert_eq!(stolen(text), Some(Duration::from_secs(4)));
        for text in ["", "cpu  1 2 3 4 5 6 7\ncpu0 1\n", "cpu  1 2 3 4 5 6 7 8 9 10\nintr 5\n"] {
            assert_eq!(stolen(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_the_scheduler_says() {
        let parsed = Scheduling { ran: Duration::from_nanos(12), waited: Duration::from_nanos(34) };
        assert_eq!(Scheduling::parse("12 34 5\n"), Some(parsed));
        assert_eq!(Scheduling::parse("12"), None);
        assert_eq!(Scheduling::parse(""), None);
    }
}
