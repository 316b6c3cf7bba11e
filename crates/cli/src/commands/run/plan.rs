//! The plan for people: what is trained, the data, memory by kind, time.

use planish_train::{NewModel, Plan};

use super::progress::duration;

/// Megabytes with one decimal.
pub fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// The plan as a table.
pub fn text(plan: &Plan) -> String {
    let (m, t) = (&plan.memory, &plan.tokens);
    let lengths = &t.data.lengths;
    let share = 100.0 * plan.trained_parameters as f64 / plan.base_parameters.max(1) as f64;
    let mut rows = plan.model.as_ref().map_or_else(Vec::new, new_model);
    rows.extend([
        (
            "trained",
            format!("{} of {} parameters ({share:.2} %)", plan.trained_parameters, plan.base_parameters),
        ),
        ("examples", format!("{} to train on, {} held out", t.train_examples, t.eval_examples)),
    ]);
    if let Some(floor) = plan.floor {
        rows.push(("floor", format!("{floor:.4} nats a held-out token: the entropy of the stories")));
    }
    if t.data.dropped + t.data.truncated + t.data.split > 0 {
        let d = &t.data;
        rows.push((
            "too long",
            format!("{} dropped, {} truncated, {} split", d.dropped, d.truncated, d.split),
        ));
    }
    rows.push((
        "lengths",
        format!("{} tokens at the median, {} at 95 %, {} at most", lengths.p50, lengths.p95, lengths.max),
    ));
    if let Some(p) = &t.packed {
        let fill = 100.0 * p.fill;
        rows.push(("packed", format!("{} packs of up to {} tokens, {fill:.1} % full", p.packs, p.context)));
    }
    if let Some(e) = &t.data.end_of_turn {
        rows.push(("end of turn", format!("trained {:.1} times an example, at least {}", e.mean, e.min)));
    }
    let trained = 100.0 * t.run_trained_tokens as f64 / t.run_tokens.max(1) as f64;
    rows.push((
        "steps",
        format!("{}: {} tokens, {trained:.0} % of them in the loss", plan.steps, t.run_tokens),
    ));
    let speed = plan.time.tokens_per_second;
    let (training, evaluation) =
        (duration(plan.time.training_seconds), duration(plan.time.evaluation_seconds));
    rows.push(("time", format!("{training} at {speed:.0} tokens/s, evaluation {evaluation}")));
    let recompute = if plan.recompute { ", activations computed twice" } else { "" };
    rows.push(("micro-batch", format!("{} sequences{recompute}", plan.micro_batch)));
    rows.push(("products", plan.precision.clone()));
    rows.push(("memory", mb(m.total_bytes)));
    let kinds = [
        ("  weights", m.weights_bytes),
        ("  activations", m.activations_bytes),
        ("  trained", m.trained_bytes),
        ("  gradients", m.gradients_bytes),
        ("  optimizer", m.slots_bytes),
        ("  KV cache", m.kv_bytes),
        ("  checkpoint", m.checkpoint_bytes),
        ("  scratch", m.scratch_bytes),
        ("  program", m.process_bytes),
    ];
    let rare = [("  average", m.average_bytes), ("  initial", m.initial_bytes)];
    rows.extend(rare.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| (name, mb(bytes))));
    rows.extend(kinds.map(|(name, bytes)| (name, mb(bytes))));
    let d = &plan.disk;
    let free = d.free_bytes.map_or_else(String::new, |b| format!(", {} free", mb(b)));
    rows.push((
        "disk",
        format!("{} at most, {} a checkpoint{free}", mb(d.needed_bytes), mb(d.checkpoint_bytes)),
    ));
    rows.iter().map(|(name, value)| format!("{name:14}{value}")).collect::<Vec<_>>().join("\n")
}

/// What a new model was made of.
fn new_model(m: &NewModel) -> Vec<(&'static str, String)> {
    let programs =
        if m.for_llama_cpp { "llama.cpp and planish" } else { "planish alone: llama.cpp has no such family" };
    let learned = if m.vocab_learned { ", learned from the data" } else { "" };
    let mut rows = vec![
        ("model", format!("{}, for {programs}", m.family)),
        ("vocabulary", format!("{} tokens{learned}", m.vocab)),
    ];
    if let Some(matched) = m.matched {
        let share = 100.0 * matched as f64 / m.vocab.max(1) as f64;
        let lens = m.lens.map_or_else(String::new, |width| format!(", {width} wide, through a lens"));
        rows.push(("donor", format!("has {matched} of these tokens ({share:.1} %){lens}")));
    }
    rows
}
