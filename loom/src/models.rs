//! Each model is what two or three threads of an engine do at once.

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::baton::Baton;
use crate::open_steps::OpenSteps;
use crate::published::{Published, word};
use crate::quantity::{Amounts, Quantity};
use crate::sequence::Sequence;
use crate::slot::{NewStep, Since};

/// Every model, by name.
pub(crate) const ALL: [(&str, fn()); 9] = [
    ("a reader sees words of one instant", a_reader_sees_words_of_one_instant),
    ("a reading of an engine is whole", a_reading_of_an_engine_is_whole),
    ("a step closed beside others is accounted for once", a_step_closed_beside_others_is_accounted_for_once),
    ("a detach beside a close happens once and loses no step", a_detach_beside_a_close_happens_once_and_loses_no_step),
    ("a step that is found is whole and a slot is one steps", a_step_that_is_found_is_whole_and_a_slot_is_one_steps),
    (
        "what is taken of a step that is set aside is taken once",
        what_is_taken_of_a_step_that_is_set_aside_is_taken_once,
    ),
    ("what is taken of a step that is left again stays taken", what_is_taken_of_a_step_that_is_left_again_stays_taken),
    ("a copy waits for a step that is set aside", a_copy_waits_for_a_step_that_is_set_aside),
    ("a step ends with its last exit", a_step_ends_with_its_last_exit),
];

/// Every order with at most so many switches away from a thread that could go on.
fn bounded(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.max_branches = 100_000;
    builder.check(model);
}

fn a_reader_sees_words_of_one_instant() {
    loom::model(|| {
        let shared = Arc::new((Sequence::default(), AtomicU64::new(0), AtomicU64::new(0)));
        let writer = Arc::clone(&shared);
        let writing = thread::spawn(move || {
            for value in 1..=2 {
                let _open = writer.0.open();
                writer.1.store(value, Ordering::Relaxed);
                writer.2.store(value, Ordering::Relaxed);
            }
        });
        let (mut one, mut other) = (0, 0);
        let read = shared.0.read(|| {
            one = shared.1.load(Ordering::Relaxed);
            other = shared.2.load(Ordering::Relaxed);
        });
        assert!(!read || one == other, "{one} and {other}");
        writing.join().unwrap();
    });
}

fn a_reading_of_an_engine_is_whole() {
    bounded(2, || {
        let published = Arc::new(Published::new(1));
        let writer = Arc::clone(&published);
        let writing = thread::spawn(move || {
            let words = writer.write();
            words.add(word::TOTALS, 1);
            words.add(word::DISCARDED, 1);
            words.add_positions(&[1], &[1]);
        });
        let (mut reading, mut scratch) = (published.blank(), published.blank());
        if published.read(&mut reading, &mut scratch) {
            let total = reading.words[word::TOTALS];
            assert_eq!(reading.words[word::DISCARDED], total);
            assert_eq!((reading.accepted_per_position[0], reading.draft_per_position[0]), (total, total));
        }
        writing.join().unwrap();
    });
}

/// An engine as far as closing steps goes: what was accounted for is written by the holder of the baton alone.
struct Engine {
    baton: Baton,
    steps: OpenSteps,
    /// Not atomic additions: two holders at once would lose one.
    accounted: AtomicU64,
    detached: AtomicU64,
}

impl Engine {
    fn new(bound: usize) -> Self {
        let (accounted, detached) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { baton: Baton::default(), steps: OpenSteps::new(bound), accounted, detached }
    }

    fn open(&self, id: u64) -> u32 {
        let slot = self.steps.claim(id).unwrap();
        NewStep::new(slot, id).open(0, 0, 0);
        self.steps.find(id).unwrap().0
    }

    fn account(&self, index: u32) {
        self.accounted.store(self.accounted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.steps.get(index).unwrap().free();
    }

    fn close(&self, index: u32) {
        if self.baton.try_take() {
            self.account(index);
        } else {
            let index = self.steps.set_aside(index);
            if !self.baton.take_or_leave(index, |before| self.steps.link(index, before)) {
                return;
            }
            self.account(index);
        }
        self.pass();
    }

    fn detach(&self) {
        if self.baton.take_or_ask_to_detach() {
            self.detached.fetch_add(1, Ordering::Relaxed);
            self.pass();
        }
    }

    fn pass(&self) {
        while let Some(left) = self.baton.pass() {
            self.steps.left(left.newest).for_each(|index| self.account(index));
            if left.detach {
                self.detached.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn a_step_closed_beside_others_is_accounted_for_once() {
    bounded(3, || {
        let engine = Arc::new(Engine::new(3));
        let steps = [1, 2, 3].map(|id| engine.open(id));
        let others: Vec<_> = steps[1..]
            .iter()
            .map(|&index| {
                let engine = Arc::clone(&engine);
                thread::spawn(move || engine.close(index))
            })
            .collect();
        engine.close(steps[0]);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(engine.accounted.load(Ordering::Relaxed), 3);
        assert!(engine.baton.try_take(), "nobody holds it");
        assert_eq!(engine.steps.of_engine(0).count(), 0);
    });
}

fn a_detach_beside_a_close_happens_once_and_loses_no_step() {
    bounded(3, || {
        let engine = Arc::new(Engine::new(2));
        let steps = [1, 2].map(|id| engine.open(id));
        let (closing, detaching) = (Arc::clone(&engine), Arc::clone(&engine));
        let threads = [thread::spawn(move || closing.close(steps[1])), thread::spawn(move || detaching.detach())];
        engine.close(steps[0]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((engine.accounted.load(Ordering::Relaxed), engine.detached.load(Ordering::Relaxed)), (2, 1));
    });
}

fn a_step_that_is_found_is_whole_and_a_slot_is_one_steps() {
    loom::model(|| {
        let steps = Arc::new(OpenSteps::new(1));
        let threads: Vec<_> = [1_u64, 2]
            .into_iter()
            .map(|id| {
                let steps = Arc::clone(&steps);
                thread::spawn(move || {
                    let Some(slot) = steps.claim(id) else { return };
                    let mut step = NewStep::new(slot, id);
                    step.set(0, id as u32);
                    step.open(id as u32, 0, 0);
                    let (_, found) = steps.find(id).expect("it is open, and this thread's");
                    assert_eq!(found.engine.load(Ordering::Relaxed), id as u32);
                    assert_eq!(found.fields().num_spec_tokens(), id);
                    found.free();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(steps.claim(3).is_some(), "it is free again");
    });
}

fn what_is_taken_of_a_step_that_is_set_aside_is_taken_once() {
    loom::model(|| {
        let steps = Arc::new(OpenSteps::new(1));
        let slot = steps.claim(1).unwrap();
        NewStep::new(slot, 1).open(0, 0, 0);
        let taker = Arc::clone(&steps);
        let taking = thread::spawn(move || taker.get(0).is_some_and(|slot| slot.take(&Amounts::new(1, 2, 3, 4))));
        let aside = steps.set_aside(0);
        let moved = steps.get(aside).unwrap();
        let (is_taken, taken) = (moved.is_taken(), moved.taken());
        assert_eq!(taking.join().unwrap(), is_taken);
        assert_eq!(taken.get(Quantity::Emitted), if is_taken { 4 } else { 0 });
    });
}

fn what_is_taken_of_a_step_that_is_left_again_stays_taken() {
    loom::model(|| {
        let steps = Arc::new(OpenSteps::new(1));
        NewStep::new(steps.claim(1).unwrap(), 1).open(0, 0, 0);
        let engine = Arc::clone(&steps);
        let leaving = thread::spawn(move || engine.get(0).unwrap().leave_at(5));
        let was_taken = steps.get(0).unwrap().take(&Amounts::new(1, 4, 3, 4));
        leaving.join().unwrap();
        assert_eq!(steps.get(0).unwrap().is_taken(), was_taken);
    });
}

fn a_copy_waits_for_a_step_that_is_set_aside() {
    const GENERATION: u64 = 5;
    loom::model(|| {
        let steps = Arc::new(OpenSteps::new(1));
        let slot = steps.claim(1).unwrap();
        NewStep::new(slot, 1).open(0, 0, 0);
        slot.enter();
        slot.leave_at(GENERATION - 1);
        slot.exit();
        let closer = Arc::clone(&steps);
        let closing = thread::spawn(move || closer.set_aside(0));
        assert!(
            steps.of_engine(0).any(|slot| slot.since(GENERATION) == Some(Since::Over)),
            "nobody has accounted for it"
        );
        closing.join().unwrap();
    });
}

fn a_step_ends_with_its_last_exit() {
    loom::model(|| {
        let (steps, clock) = (Arc::new(OpenSteps::new(1)), Arc::new(AtomicU64::new(0)));
        let slot = steps.claim(1).unwrap();
        NewStep::new(slot, 1).open(0, 0, 0);
        slot.start_at(0);
        (0..2).for_each(|_| _ = slot.enter());
        let exit = |steps: Arc<OpenSteps>, clock: Arc<AtomicU64>| {
            move || {
                clock.fetch_add(1, Ordering::SeqCst);
                steps.get(0).unwrap().exit_and_end(|| clock.load(Ordering::SeqCst));
            }
        };
        let exiting = thread::spawn(exit(Arc::clone(&steps), Arc::clone(&clock)));
        exit(Arc::clone(&steps), clock)();
        exiting.join().unwrap();
        assert_eq!(steps.get(0).unwrap().took(), 2);
    });
}
