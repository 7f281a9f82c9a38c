//! Plots as SVG: latency of every operation, and operations a second, with faults in the background.

use std::fmt::Write as _;
use std::time::Duration;

use crate::check::Facts;
use crate::history::{Body, Kind, Op};

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 26.0;
const LATENCY_MS: [f64; 6] = [0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0];
const BUCKET: Duration = Duration::from_millis(500);
/// More points than these are thinned out.
const POINT_COUNT_MAX: usize = 12_000;

struct Canvas {
    svg: String,
    seconds: f64,
}

/// A fault: what it is, and its begin and end in seconds.
pub(super) struct Window {
    pub(super) name: String,
    pub(super) detail: String,
    pub(super) begin: f64,
    pub(super) end: f64,
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The faults of a history.
pub(super) fn windows(history: &[Op]) -> Vec<Window> {
    let last = history.last().map_or(0.0, |op| op.time.as_secs_f64());
    let mut windows: Vec<Window> = Vec::new();
    for op in history {
        let Body::Fault { name, begins, detail } = &op.body else { continue };
        let at = op.time.as_secs_f64();
        if *begins {
            let (name, detail) = (name.clone(), detail.clone());
            windows.push(Window { name, detail, begin: at, end: last });
        } else if let Some(open) =
            windows.iter_mut().rev().find(|it| it.name == *name && it.end == last)
        {
            open.end = at;
        }
    }
    windows
}

impl Canvas {
    fn new(history: &[Op]) -> Self {
        let seconds = history.last().map_or(1.0, |op| op.time.as_secs_f64()).max(1.0);
        let mut canvas = Self { svg: String::new(), seconds };
        canvas.put(&format!(
            "<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' xmlns='http://www.w3.org/2000/svg'>"
        ));
        for window in windows(history) {
            let (x, width) =
                (canvas.x(window.begin), canvas.x(window.end) - canvas.x(window.begin));
            let hue =
                window.name.bytes().fold(7u32, |hash, byte| hash * 31 % 360 + u32::from(byte));
            let (name, detail) = (escaped(&window.name), escaped(&window.detail));
            canvas.put(&format!(
                "<rect x='{x:.1}' y='0' width='{width:.1}' height='{:.1}' \
                 fill='hsl({} 70% 60% / .18)'><title>{name}: {detail}</title></rect>",
                HEIGHT - BOTTOM,
                hue % 360
            ));
        }
        let step = (seconds / 12.0).ceil().max(1.0);
        let mut at = 0.0;
        while at <= seconds {
            let (x, y) = (canvas.x(at), HEIGHT - 8.0);
            canvas.put(&format!("<text x='{x:.0}' y='{y}' class='t'>{at:.0} s</text>"));
            at += step;
        }
        canvas
    }

    fn put(&mut self, element: &str) {
        self.svg += element;
        self.svg.push('\n');
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - 6.0) * seconds / self.seconds
    }

    fn level(&mut self, share: f64, label: &str) {
        let y = height(share);
        self.put(&format!(
            "<line x1='{LEFT}' x2='{WIDTH}' y1='{y:.1}' y2='{y:.1}' class='g'/>\
             <text x='4' y='{:.1}' class='t'>{label}</text>",
            y + 4.0
        ));
    }

    fn finish(mut self) -> String {
        self.put("</svg>");
        self.svg
    }
}

/// From the share of the height that a value has.
fn height(share: f64) -> f64 {
    (HEIGHT - BOTTOM) * (1.0 - share.clamp(0.0, 1.0)) + 4.0 * share
}

/// Every operation, by its begin and how long it took.
pub(super) fn latency(history: &[Op], names: &[&str]) -> String {
    let facts = Facts::of(history);
    let mut canvas = Canvas::new(history);
    let (low, high) = (LATENCY_MS[0].log10(), LATENCY_MS[5].log10());
    let share = |ms: f64| (ms.max(LATENCY_MS[0]).log10() - low) / (high - low);
    for ms in LATENCY_MS {
        let label = if ms < 1.0 { "0.1 ms".to_owned() } else { format!("{ms:.0} ms") };
        canvas.level(share(ms), &label);
    }
    let wanted: Vec<_> =
        facts.spans.iter().filter(|span| names.contains(&span.invoked.body.name())).collect();
    let every = wanted.len() / POINT_COUNT_MAX + 1;
    for (index, span) in wanted.into_iter().enumerate() {
        let Some(op) = span.completed else { continue };
        // What failed is always shown.
        if op.kind == Kind::Ok && index % every != 0 {
            continue;
        }
        let begun = span.invoked.time.as_secs_f64();
        let y = height(share((op.time.as_secs_f64() - begun) * 1e3));
        let x = canvas.x(begun);
        let class = op.kind.name();
        canvas.put(&format!("<circle cx='{x:.1}' cy='{y:.1}' r='1.6' class='{class}'/>"));
    }
    canvas.finish()
}

/// Operations a second that ended each way.
pub(super) fn throughput(history: &[Op]) -> String {
    let mut canvas = Canvas::new(history);
    let bucket = BUCKET.as_secs_f64();
    let count = (canvas.seconds / bucket) as usize + 1;
    let mut by_kind =
        [(Kind::Ok, vec![0u32; count]), (Kind::Fail, vec![0; count]), (Kind::Info, vec![0; count])];
    for op in history {
        if matches!(op.body, Body::Fault { .. }) {
            continue;
        }
        let slot = (op.time.as_secs_f64() / bucket) as usize;
        for (kind, counts) in &mut by_kind {
            if *kind == op.kind
                && let Some(count) = counts.get_mut(slot)
            {
                *count += 1;
            }
        }
    }
    let most = by_kind.iter().flat_map(|(_, counts)| counts).copied().max().unwrap_or(1).max(1);
    for part in [0.5, 1.0] {
        canvas.level(part, &format!("{:.0}/s", f64::from(most) * part / bucket));
    }
    for (kind, counts) in by_kind {
        let mut points = String::new();
        for (slot, count) in counts.iter().enumerate() {
            let (x, y) =
                (canvas.x(slot as f64 * bucket), height(f64::from(*count) / f64::from(most)));
            // Writing to a string cannot fail.
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        canvas.put(&format!("<polyline points='{points}' class='l {}'/>", kind.name()));
    }
    canvas.finish()
}
