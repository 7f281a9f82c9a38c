use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// What `run` panicked with.
fn panic_of(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
    panic.downcast_ref::<String>().cloned().expect("a message")
}

#[cfg(debug_assertions)]
#[test]
fn a_thread_that_holds_a_lock_does_not_get_it_again() {
    let state = RwLock::new(1);
    let first = state.read();
    let here = file!();
    for again in [panic_of(|| drop(state.read())), panic_of(|| drop(state.write()))] {
        assert_eq!(again.matches(here).count(), 2, "{again}");
    }
    drop(first);
    *state.write() += 1;
    let writer = state.write();
    panic_of(|| drop(state.read()));
    drop(writer);
    assert_eq!(*state.read(), 2);
}

#[test]
fn a_thread_may_hold_several_locks_and_several_threads_one() {
    let (one, other) = (RwLock::new(1), RwLock::new(2));
    let (first, second) = (one.read(), other.read());
    let sum = std::thread::scope(|scope| {
        scope.spawn(|| *one.read() + *other.read()).join().expect("no panic")
    });
    assert_eq!(sum, *first + *second);
}

#[test]
fn what_a_panic_left_under_a_lock_is_not_given_to_others() {
    let value = Mutex::new(1);
    panic_of(|| {
        let _guard = lock(&value);
        panic!("{}", "half changed");
    });
    assert!(panic_of(|| drop(lock(&value))).contains("panicked under this lock"));
}
