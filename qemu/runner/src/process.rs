//! Child processes and temporary files that never outlive the tool.
//!
//! Every child gets a process group of its own and dies with the tool (`PR_SET_PDEATHSIG`), so that neither
//! Ctrl-C, nor SIGTERM, nor a killed tool leaves a QEMU behind. Sockets and temporary folders are registered
//! and removed on every way out except SIGKILL.

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
        // An error means that the group is gone already, which is what was wanted.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

fn remove(path: &Path) {
    // A child that was just killed may still be writing below the path: try again until nothing is left.
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

/// Has `hook` called on the way out, a signal's too. It must not spawn children or make temporary files.
pub fn before_exit(hook: impl FnOnce() + Send + 'static) {
    registry().hooks.push(Box::new(hook));
}

/// Kills every child, calls the hooks and removes every registered path. Called on the way out.
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

/// From now on SIGINT, SIGTERM and SIGHUP clean up and end the tool with 128 + the signal's number.
///
/// # Errors
/// The system refuses the handler.
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

/// A signal is ending the tool.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Returns unless a signal is ending the tool, and then never: what fails meanwhile fails because of it, and is
/// not worth a word.
pub fn wait_if_ending() {
    while ENDING.load(Ordering::Acquire) {
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// Children are spawned by one thread that lives as long as the tool: the kernel sends the parent-death signal
/// when the *thread* that spawned ends, not the process.
fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<SpawnRequest>();
        // Should the thread not start, the channel is closed and every spawn reports so.
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

/// A child in a process group of its own, killed with the whole group when dropped.
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
        // SAFETY: the closure runs between fork and exec and makes only the system calls prctl and getppid;
        // it takes no lock and allocates nothing.
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
        // The registry is locked across the spawn, so a signal cannot fall between start and registration.
        let mut registry = registry();
        let child = spawn_on_lasting_thread(command)
            .map_err(|error| Error::Program(format!("cannot start {program}: {error}")))?;
        let group = child.id() as i32;
        registry.groups.insert(group);
        Ok(Self { child, group })
    }

    /// The child's standard streams, where piped.
    pub fn streams(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The processor time that those of the child's threads have used whose names begin with `prefix`.
    ///
    /// # Errors
    /// The child has ended, or has no such thread.
    pub fn thread_time(&self, prefix: &str) -> Result<Duration> {
        let folder = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let tasks = std::fs::read_dir(&folder).context("cannot read", &folder)?;
        // Threads come and go meanwhile.
        let read = |path: &Path, file| std::fs::read_to_string(path.join(file)).unwrap_or_default();
        let nanoseconds: Vec<u64> = tasks
            .flatten()
            .filter(|task| read(&task.path(), "comm").starts_with(prefix))
            .filter_map(|task| read(&task.path(), "schedstat").split_whitespace().next()?.parse().ok())
            .collect();
        match nanoseconds.iter().sum() {
            0 => Err(Error::Program(format!("no thread `{prefix}` of the child has run"))),
            sum => Ok(Duration::from_nanos(sum)),
        }
    }

    /// The exit status if the child has ended.
    ///
    /// # Errors
    /// The system refuses to say.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        // Locked, so that nobody kills the group after its number was given back to the system.
        let mut registry = registry();
        let status =
            self.child.try_wait().map_err(|error| Error::Program(format!("cannot wait: {error}")))?;
        if status.is_some() {
            registry.groups.remove(&self.group);
        }
        Ok(status)
    }

    /// Waits for the end, at most until `deadline`; `None` when it is still running then.
    ///
    /// # Errors
    /// The system refuses to say.
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

    /// Kills the whole group and waits for the child's end.
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

/// A path that is removed when dropped and when the tool ends.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// Takes over `path`: whatever is there at the end is removed.
    pub fn adopt(path: PathBuf) -> Self {
        registry().paths.insert(path.clone());
        Self { path }
    }

    /// A new, empty folder under the system's temporary folder, for sockets, logs and guest scripts.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn folder(purpose: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mlx5-{purpose}-{}-{number}", std::process::id());
        let temporary = Self::adopt(std::env::temp_dir().join(name));
        // A namesake can only be left over from a killed run whose process id came round again.
        remove(&temporary.path);
        std::fs::create_dir(&temporary.path).context("cannot create", &temporary.path)?;
        Ok(temporary)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the path up: it is kept.
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
