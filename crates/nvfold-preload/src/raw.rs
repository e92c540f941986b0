//! System calls that a program makes past libc: caught where they are made.
//!
//! The problem: rustix, and whoever writes `syscall` in assembler, asks the kernel itself, which does not know the prefix.
//! The idea: Linux (5.11) can send the thread SIGSYS instead of serving a system call made outside a range of code: Syscall
//! User Dispatch. The range is libc's own code, so libc's calls, ours among them, cost what they did, apart from a compare
//! in the kernel. The handler serves what is about our files (`calls::by_number`), and makes all other calls again by libc.
//! `syscall`, the function of libc, asks the same.
//!
//! ```text
//! program    syscall instruction -> kernel: outside of libc? -> SIGSYS
//! handler    our file? served    otherwise syscall(..) of libc
//! program    goes on behind its instruction, with the answer in rax
//! ```
//!
//! The kernel arms a thread, and forgets that in children and when a program is executed; so each new thread arms itself
//! before it starts. SIGSYS must never be blocked (`calls::signals`).
//!
//! The program was at an instruction of its own, so this thread holds no lock of ours when the handler begins.

use crate::answer::{as_the_kernel, errno};
use crate::calls::by_number::{self, Arguments};
use crate::calls::host;
use crate::calls::signals::{self, KERNEL_SET_BYTES, SIGSYS, is_armed};
use crate::process;
use nvfold_c::failure::set_errno;
use std::arch::{asm, naked_asm};
use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_OFF: c_ulong = 0;
const PR_SYS_DISPATCH_ON: c_ulong = 1;
/// `si_code` of a call that was dispatched.
const SYS_USER_DISPATCH: c_int = 2;
/// Bytes of the `syscall` instruction.
const INSTRUCTION_BYTES: i64 = 2;
/// libc's code: the first byte and the length.
static LIBC: OnceLock<(usize, usize)> = OnceLock::new();
/// Where libc lets handlers return to: `mov $15, %rax; syscall`.
static RESTORER: AtomicUsize = AtomicUsize::new(0);

/// Starts to catch system calls, in this thread and all that it starts. Returns false where the kernel cannot.
pub(crate) fn begin() -> bool {
    if is_under_valgrind() {
        return false;
    }
    let Some(range) = code_of_libc() else { return false };
    let _ = LIBC.set(range);
    let Some(before) = set_handler() else { return false };
    if !arm() {
        // SAFETY: the action that was there.
        unsafe { libc::sigaction(libc::SIGSYS, &raw const before, ptr::null_mut()) };
        return false;
    }
    signals::begin(before);
    true
}

/// Valgrind makes the program's system calls by code of its own, which the kernel would send SIGSYS for.
fn is_under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: usize;
    // SAFETY: valgrind knows these instructions, and sets rdx. A processor rotates rdi once around, and changes nothing.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_usize => answer,
            inout("rdi") 0_usize => _,
        );
    }
    answer != 0
}

fn code_of_libc() -> Option<(usize, usize)> {
    /// Looks for the code around the address that `data` has, and puts it there.
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the loader passes a description of an object, which has so many headers; `data` is ours.
        let (object, found) = unsafe { (&*object, &mut *data.cast::<(usize, usize)>()) };
        for at in 0..object.dlpi_phnum as usize {
            // SAFETY: as above.
            let header = unsafe { &*object.dlpi_phdr.add(at) };
            let start = object.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
            let is_code = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
            if is_code && (start..start + header.p_memsz as usize).contains(&found.0) {
                *found = (start, header.p_memsz as usize);
                return 1;
            }
        }
        0
    }
    // A function that nothing stands for.
    let mut found = (libc::getppid as *const () as usize, 0);
    // SAFETY: `look` is as the loader wants it, and `found` is ours.
    let is_found = unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    (is_found == 1).then_some(found)
}

fn set_of_sigsys() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset fills the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGSYS);
        set.assume_init()
    }
}

/// Sets the handler; returns the action before.
fn set_handler() -> Option<libc::sigaction> {
    // SAFETY: all zeros are an action; the handler is as sigaction wants it, and stays loaded.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        action.sa_sigaction = on_sigsys as *const () as usize;
        // It may be interrupted by itself: what it calls may make the loader ask the kernel. And not on another stack, which
        // may be small.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        if libc::sigaction(libc::SIGSYS, &raw const action, &raw mut before) != 0 {
            return None;
        }
        // As the kernel has it: handler, flags, restorer, mask.
        let mut kernels = [0_usize; 4];
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGSYS, 0_usize, &raw mut kernels, KERNEL_SET_BYTES);
        RESTORER.store(kernels[2], Ordering::Relaxed);
        Some(before)
    }
}

/// Arms this thread.
fn arm() -> bool {
    let Some((start, length)) = LIBC.get() else { return false };
    let set = set_of_sigsys();
    // SAFETY: the set is ours. From now on the kernel sends SIGSYS for calls of this thread outside of libc, and there is a
    // handler.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
        libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, *start, *length, 0_usize) == 0
    }
}

/// Serves a call, or makes it again; returns what the kernel would: above -4096 and below 0, an error number.
fn serve(number: c_long, arguments: &Arguments) -> isize {
    by_number::serve(number, arguments).unwrap_or_else(|| {
        let [a, b, c, d, e, f] = *arguments;
        // SAFETY: the program's own system call.
        as_the_kernel(|| unsafe { libc::syscall(number, a, b, c, d, e, f) as isize })
    })
}

/// The handler of SIGSYS.
unsafe extern "C" fn on_sigsys(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, of these types, to a handler with SA_SIGINFO.
    let (code, program) = unsafe { ((*info).si_code, &mut *context.cast::<libc::ucontext_t>()) };
    if code != SYS_USER_DISPATCH {
        // SAFETY: the arguments of this very signal.
        unsafe { as_the_program_wants(signal, info, context) };
        return;
    }
    let before = errno();
    let register = |at: c_int| program.uc_mcontext.gregs[at as usize] as usize;
    let number = register(libc::REG_RAX) as c_long;
    let arguments =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9].map(register);
    let answer = match number {
        // SAFETY: the program returns from a handler by its own code, with its stack as the kernel wants it.
        libc::SYS_rt_sigreturn => unsafe { return_by(RESTORER.load(Ordering::Relaxed), register(libc::REG_RSP)) },
        libc::SYS_rt_sigprocmask => change_mask(program, &arguments),
        libc::SYS_sigaltstack => change_stack(program, &arguments),
        _ if by_number::shares_memory(number, &arguments) => {
            // What comes of it returns twice, or on another stack: it must be the program's own instruction. So this thread
            // asks the kernel itself from now on.
            // SAFETY: it ends what `arm` began.
            unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0_usize, 0_usize, 0_usize) };
            program.uc_mcontext.gregs[libc::REG_RIP as usize] -= INSTRUCTION_BYTES;
            set_errno(before);
            return;
        }
        _ => serve(number, &arguments),
    };
    program.uc_mcontext.gregs[libc::REG_RAX as usize] = answer as i64;
    set_errno(before);
}

/// Lets the kernel return from a handler of the program.
///
/// # Safety
///
/// `restorer` is libc's, and the stack lies as it does when a handler returns.
unsafe fn return_by(restorer: usize, stack: usize) -> ! {
    // SAFETY: the caller's contract; the kernel takes all registers from the stack.
    unsafe {
        asm!("mov rsp, {stack}", "jmp {restorer}", stack = in(reg) stack, restorer = in(reg) restorer, options(noreturn))
    }
}

/// rt_sigprocmask for the program, whose mask is the one that the handler returns to.
fn change_mask(program: &mut libc::ucontext_t, arguments: &Arguments) -> isize {
    let [how, set, old, bytes, ..] = *arguments;
    if bytes != KERNEL_SET_BYTES {
        return -(libc::EINVAL as isize);
    }
    let mask = (&raw mut program.uc_sigmask).cast::<u64>();
    // SAFETY: the kernel's signal set is the first word of libc's; the program passes NULL or sets of so many bytes.
    unsafe {
        let before = mask.read();
        let set: *const u64 = ptr::with_exposed_provenance(set);
        let never = SIGSYS | 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        if !set.is_null() {
            let set = set.read_unaligned();
            let after = match how as c_int {
                libc::SIG_BLOCK => before | set,
                libc::SIG_UNBLOCK => before & !set,
                libc::SIG_SETMASK => set,
                _ => return -(libc::EINVAL as isize),
            };
            mask.write(after & !never);
        }
        let old: *mut u64 = ptr::with_exposed_provenance_mut(old);
        if !old.is_null() {
            old.write_unaligned(before);
        }
    }
    0
}

/// sigaltstack for the program, whose stack the handler returns to as well.
fn change_stack(program: &mut libc::ucontext_t, arguments: &Arguments) -> isize {
    let answer = serve(libc::SYS_sigaltstack, arguments);
    let new: *const libc::stack_t = ptr::with_exposed_provenance(arguments[0]);
    if answer == 0 && !new.is_null() {
        // SAFETY: the kernel has just read it.
        program.uc_stack = unsafe { new.read_unaligned() };
    }
    answer
}

/// A SIGSYS that is not ours: of a seccomp filter, or of another process.
///
/// # Safety
///
/// The arguments are those of a handler.
unsafe fn as_the_program_wants(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let action = signals::of_the_program();
    let Some(action) = action else { return };
    match action.sa_sigaction {
        libc::SIG_IGN => {}
        // SAFETY: it ends the program, by this signal.
        libc::SIG_DFL => unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
            libc::raise(signal);
        },
        // SAFETY: the program gave this function for this signal. It may take fewer arguments, which does no harm.
        handler => unsafe {
            let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
            handler(signal, info, context);
        },
    }
}

/// What a new thread is to call.
#[repr(C)]
struct Start {
    function: usize,
    argument: *mut c_void,
}

type Function = extern "C" fn(*mut c_void) -> *mut c_void;

/// Arms a new thread; returns what it is to call.
unsafe extern "C" fn arm_new_thread(start: *mut Start) -> Start {
    arm();
    // SAFETY: `with_arming` made it for this thread alone.
    *unsafe { Box::from_raw(start) }
}

/// Where new threads begin. It leaves no frame on the stack, which pthread_exit would have to unwind.
#[unsafe(naked)]
extern "C" fn begin_thread(start: *mut c_void) -> *mut c_void {
    naked_asm!(
        "sub rsp, 8",
        "call {arm}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        arm = sym arm_new_thread,
    )
}

/// Lets `create` start a thread that arms itself first.
fn with_arming(function: usize, argument: *mut c_void, create: impl FnOnce(Function, *mut c_void) -> c_int) -> c_int {
    let start = Box::into_raw(Box::new(Start { function, argument }));
    let failed = create(begin_thread, start.cast());
    if failed != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(start) });
    }
    failed
}

/// pthread_create(3)
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvfold_preload_pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    if !is_armed() || process::is_not_owner() {
        return host!(libc::pthread_create(thread, attributes, function, argument));
    }
    with_arming(function as usize, argument, |function, argument| {
        host!(libc::pthread_create(thread, attributes, function, argument))
    })
}

/// thrd_create(3)
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvfold_preload_thrd_create(
    thread: *mut libc::pthread_t,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    unsafe extern "C" {
        fn thrd_create(thread: *mut libc::pthread_t, function: Function, argument: *mut c_void) -> c_int;
    }
    if !is_armed() || process::is_not_owner() {
        return host!(thrd_create(thread, function, argument));
    }
    with_arming(function as usize, argument, |function, argument| host!(thrd_create(thread, function, argument)))
}

/// Whether a call by `syscall` was served, and its answer.
#[repr(C)]
struct Served {
    is_served: usize,
    answer: isize,
}

/// Serves a call of `syscall`. `words`: the number, five arguments, the return address, and the sixth argument.
unsafe extern "C" fn serve_words(words: *const [usize; 8]) -> Served {
    // SAFETY: what `nvfold_preload_syscall` has pushed, and above it the caller's frame.
    let [number, a, b, c, d, e, _, f] = unsafe { *words };
    match by_number::serve(number as c_long, &[a, b, c, d, e, f]) {
        Some(answer) if answer < 0 => {
            set_errno(-answer as c_int);
            Served { is_served: 1, answer: -1 }
        }
        Some(answer) => Served { is_served: 1, answer },
        None => Served { is_served: 0, answer: 0 },
    }
}

#[cfg(not(test))]
unsafe extern "C" {
    /// `syscall` of the next library (scripts/preload-library.sh).
    #[link_name = "nvfold_next_syscall"]
    fn next_syscall();
}
#[cfg(test)]
unsafe extern "C" fn next_syscall() {}

/// syscall(2). What is not ours goes on with all registers and the stack as they were: it may return twice.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) extern "C" fn nvfold_preload_syscall(_number: c_long) -> c_long {
    naked_asm!(
        "push r9",
        "push r8",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "mov rdi, rsp",
        "sub rsp, 8",
        "call {serve}",
        "add rsp, 8",
        "mov r10, rdx",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop r8",
        "pop r9",
        "test rax, rax",
        "jne 2f",
        "jmp {syscall}",
        "2: mov rax, r10",
        "ret",
        serve = sym serve_words,
        syscall = sym next_syscall,
    )
}
