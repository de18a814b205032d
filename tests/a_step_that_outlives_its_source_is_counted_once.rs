//! A source dies, or is detached, when a sample has had part of a step that is not closed. The step is then counted by its
//! fields: whole, and that part not once more.
#![allow(missing_docs)]

mod support;

use std::sync::{Arc, Mutex};

use support::{Stack, of_engine};
use tracing::Span;
use tracing_spec_decode::source::{CounterSource, Counters, Dead, Layout, Snapshot, SourceError};
use tracing_spec_decode::{Attached, step_span};

/// Counters that land at once, until the device dies.
#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    now: Counters,
    taken: Counters,
    is_dead: bool,
}

impl Device {
    fn count(&self, accepted: u64) {
        let now = &mut self.0.lock().unwrap().now;
        now.drafts += 1;
        now.draft_tokens += 4;
        now.accepted += accepted;
        now.emitted += accepted + 1;
    }

    fn die(&self) {
        self.0.lock().unwrap().is_dead = true;
    }
}

struct Source(Device, Layout);

impl CounterSource for Source {
    fn layout(&self) -> Layout {
        self.1
    }

    fn start(&mut self) -> Result<(), SourceError> {
        let state = &mut *self.0.0.lock().unwrap();
        state.taken = state.now.clone();
        if state.is_dead { Err(SourceError::Dead(Dead::DeviceLost)) } else { Ok(()) }
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        counters.clone_from(&self.0.0.lock().unwrap().taken);
        Ok(Snapshot::Landed)
    }
}

const HOST_DRAFTS: Layout = Layout::accepted().with_emitted();
const WHOLE: Layout = HOST_DRAFTS.with_drafts().with_draft_tokens();

struct Engine {
    stack: Stack,
    device: Device,
    attached: Option<Attached>,
}

/// The end of the source.
#[derive(Clone, Copy)]
enum End {
    Death,
    Detach,
}

impl Engine {
    fn run(layout: Layout, engine: impl FnOnce(&mut Self)) {
        let (stack, device) = (Stack::new(), Device::default());
        let attached = Some(stack.handle.attach("0", Source(device.clone(), layout)).unwrap());
        engine(&mut Self { stack, device, attached });
    }

    fn pass_an_interval(&self) {
        self.stack.pass(6_000);
    }

    fn step(&self, accepted: u32) {
        step(accepted).in_scope(|| self.device.count(accepted.into()));
    }

    /// The device has counted three tokens for a step that somebody is inside, and a sample has them.
    fn sample_with_part_of_it(&self) {
        self.device.count(3);
        self.pass_an_interval();
        self.step(1);
        self.stack.handle.poll("0");
    }

    fn end(&mut self, end: End) {
        match end {
            End::Death => {
                self.device.die();
                self.pass_an_interval();
                self.stack.handle.poll("0");
            }
            End::Detach => drop(self.attached.take()),
        }
    }

    /// Drafts, draft tokens, accepted and emitted tokens, as exported.
    fn totals(&self) -> [f64; 4] {
        let points = self.stack.collect();
        ["drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"].map(|name| points[&of_engine(name)])
    }
}

/// A step of one draft of four tokens.
fn step(accepted: u32) -> Span {
    step_span!(
        parent: None,
        num_spec_tokens = 4,
        num_drafts = 1,
        num_accepted_tokens = accepted,
        num_emitted_tokens = accepted + 1
    )
}

#[test]
fn half_of_it_was_in_a_sample() {
    for (layout, end) in
        [HOST_DRAFTS, WHOLE].into_iter().flat_map(|layout| [(layout, End::Death), (layout, End::Detach)])
    {
        Engine::run(layout, |engine| {
            engine.step(2);
            engine.stack.flush();
            let half = step(3);
            half.in_scope(|| {
                engine.sample_with_part_of_it();
                let accepted = engine.totals()[2];
                assert_eq!(accepted, 6.0, "there is a sample with part of it");
                engine.end(end);
            });
            drop(half);
            assert_eq!(engine.totals(), [3.0, 12.0, 6.0, 9.0]);
            let metrics = engine.stack.metrics();
            assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(12), Some(6)));
            for _ in 0..3 {
                engine.step(4);
            }
            assert_eq!(engine.totals(), [6.0, 24.0, 18.0, 24.0], "those after it count whole");
        });
    }
}

#[test]
fn its_window_shows_no_rate_that_lacks_what_was_published_before() {
    for layout in [HOST_DRAFTS, WHOLE] {
        Engine::run(layout, |engine| {
            let half = step(3);
            half.in_scope(|| {
                engine.sample_with_part_of_it();
                engine.end(End::Death);
                engine.stack.handle.rebase("0");
            });
            drop(half);
            assert_eq!(engine.stack.metrics().draft_acceptance_rate(), 0.75, "all of it and nothing else");
            let rate = |engine: &Engine| {
                engine.pass_an_interval();
                step_span!().in_scope(|| ());
                engine.stack.collect().get(&of_engine("draft_acceptance_rate")).copied()
            };
            assert_eq!(rate(engine), None);
            engine.step(2);
            assert_eq!(rate(engine), Some(0.5), "the next is as ever");
        });
    }
}

#[test]
fn its_fields_were_taken_since_it_did_not_close() {
    for end in [End::Death, End::Detach] {
        Engine::run(HOST_DRAFTS, |engine| {
            engine.pass_an_interval();
            let kept = step(3);
            kept.in_scope(|| engine.device.count(3));
            engine.stack.handle.poll("0");
            engine.pass_an_interval();
            engine.stack.handle.poll("0");
            assert_eq!(engine.totals(), [1.0, 4.0, 3.0, 4.0], "it is taken as it is");
            engine.end(end);
            drop(kept);
            assert_eq!(engine.totals(), [1.0, 4.0, 3.0, 4.0]);
            engine.step(2);
            assert_eq!(engine.totals(), [2.0, 8.0, 5.0, 7.0]);
        });
    }
}

#[test]
fn it_does_not_say_what_was_accepted_and_no_other_step_pays_for_it() {
    Engine::run(HOST_DRAFTS, |engine| {
        let half = step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1);
        half.in_scope(|| {
            engine.sample_with_part_of_it();
            engine.end(End::Death);
        });
        drop(half);
        engine.step(4);
        engine.step(2);
        assert_eq!(engine.totals(), [3.0, 12.0, 10.0, 13.0]);
    });
}

#[test]
fn what_was_published_of_it_is_unknown_since_another_step_did_not_say_what_was_accepted() {
    for end in [End::Death, End::Detach] {
        Engine::run(WHOLE, |engine| {
            let _open = step(0).entered();
            step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1).in_scope(|| engine.device.count(0));
            let half = step(4);
            half.in_scope(|| {
                engine.device.count(4);
                engine.stack.flush();
                engine.end(end);
            });
            drop(half);
            assert_eq!(engine.totals(), [2.0, 8.0, 4.0, 6.0], "as published: it adds nothing");
            assert_eq!(engine.stack.collect()[&support::anomaly("incomplete")], 1.0);
        });
    }
}

#[test]
fn nobody_says_what_was_accepted_of_it_and_a_rebase_is_in_between() {
    Engine::run(HOST_DRAFTS, |engine| {
        let half = step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1);
        half.in_scope(|| {
            engine.sample_with_part_of_it();
            engine.end(End::Death);
            engine.stack.handle.rebase("0");
        });
        drop(half);
        let metrics = engine.stack.metrics();
        assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(0), Some(0)), "it was published before");
        engine.step(2);
        let metrics = engine.stack.metrics();
        assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(4), Some(2)));
    });
}

#[test]
fn a_source_attached_next_begins_anew() {
    Engine::run(HOST_DRAFTS, |engine| {
        let half = step(3);
        half.in_scope(|| {
            engine.sample_with_part_of_it();
            engine.end(End::Death);
        });
        engine.attached = None;
        let device = Device::default();
        let _attached = engine.stack.handle.attach("0", Source(device.clone(), WHOLE)).unwrap();
        drop(half);
        step(2).in_scope(|| device.count(2));
        engine.stack.flush();
        assert_eq!(engine.totals(), [2.0, 8.0, 6.0, 8.0]);
    });
}

/// A step that is open: what of it was accepted, whether the device has counted that, and whether somebody is inside.
struct Open(Span, u32, bool, bool);

#[test]
fn no_order_of_steps_copies_and_the_end_counts_anything_twice() {
    for seed in 0..1_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let layout = [HOST_DRAFTS, WHOLE][random.usize(..2)];
        Engine::run(layout, |engine| {
            let dispatch = tracing::dispatcher::get_default(Clone::clone);
            let (mut open, mut did): (Vec<Open>, [u64; 4]) = (Vec::new(), [0; 4]);
            let end_at = random.usize(10..60);
            for at in 0..end_at + 10 {
                if at == end_at {
                    engine.end([End::Death, End::Detach][random.usize(..2)]);
                }
                let (index, has_room) = (random.usize(..open.len().max(1)), open.len() < 3);
                match (random.u8(..8), open.get_mut(index)) {
                    (0 | 1, _) if has_room => {
                        let accepted = random.u32(..=4);
                        let span = step(accepted);
                        dispatch.enter(&span.id().unwrap());
                        open.push(Open(span, accepted, false, true));
                        let step = [1, 4, accepted.into(), u64::from(accepted) + 1];
                        did.iter_mut().zip(step).for_each(|(did, step)| *did += step);
                    }
                    (2 | 3, Some(Open(_, accepted, has_counted @ false, true))) => {
                        engine.device.count((*accepted).into());
                        *has_counted = true;
                    }
                    (4, Some(Open(span, _, true, is_inside @ true))) => {
                        dispatch.exit(&span.id().unwrap());
                        *is_inside = false;
                    }
                    (5, Some(Open(_, _, _, false))) => drop(open.swap_remove(index)),
                    (6, _) => engine.stack.pass(1_000 * random.u64(..6)),
                    (7, _) => engine.stack.handle.poll("0"),
                    _ => {}
                }
            }
            for Open(span, _, _, is_inside) in open {
                if is_inside {
                    dispatch.exit(&span.id().unwrap());
                }
            }
            let totals = &engine.stack.handle.totals().engines[0];
            let counted =
                [totals.drafts, totals.draft_tokens, totals.accepted_tokens, totals.emitted_tokens.unwrap_or(0)];
            assert!(counted.iter().zip(did).all(|(counted, did)| *counted <= did), "{seed}: {counted:?} of {did:?}");
            assert!(counted[2] <= counted[1], "{seed}: {counted:?}");
        });
    }
}
