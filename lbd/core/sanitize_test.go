package core

import (
	"testing"

	"skyserve/lbd/policy"
)

// The value of an unknown figure counts nowhere: a record does not contain it, so its replay would decide otherwise.
func TestUnknownFiguresHaveNoValue(t *testing.T) {
	unknown := policy.Maybe[int]{Value: 7}
	r := ProbeReport{Ready: true, Pending: unknown, Running: unknown, Slots: unknown, KV: policy.Maybe[float64]{Value: 0.5}}
	if got := r.sanitized(); got.Pending != (policy.Maybe[int]{}) || got.Running != (policy.Maybe[int]{}) || got.Slots != (policy.Maybe[int]{}) || got.KV != (policy.Maybe[float64]{}) {
		t.Errorf("got %+v", got)
	}
	if got := (ModelLoad{KV: policy.Maybe[float64]{Value: 0.5}}).sanitized(); got.KV != (policy.Maybe[float64]{}) {
		t.Errorf("got %+v", got)
	}
}
