package main

import (
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
)

// A reservation that cannot be used is named before anything is launched; a usable one is used.
func TestReservationsByID(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := emulate(t)
	e.aws.Configure(func() {
		e.aws.QuotaLimits = map[string]float64{"L-DB2E81BA": 64, "L-3819A6DF": 64, "L-417A185B": 0, "L-7212CCBC": 0, "L-C4BD4855": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	})
	text := strings.Replace(cloudService, "    capacity: [spot, on_demand]\n", "    reserved: [{id: cr-0abc, type: g6.xlarge, count: 1, price: 0.3}]\n    capacity: [reserved, on_demand]\n", 1)
	up := e.upOf(text)
	doctor := e.at("doctor", up[1])
	const unknown = "reservation cr-0abc: not found in aws/us-east-1"
	if out := e.skyserve(exitFailed, doctor...); !strings.Contains(out, unknown) {
		t.Errorf("doctor: no %q in\n%s", unknown, out)
	}
	if out := e.skyserve(exitOK, append(slices.Clone(up), "--dry-run")...); !strings.Contains(out, unknown) || !strings.Contains(out, "on_demand g6.xlarge") {
		t.Errorf("dry run: no %q, or another offering, in\n%s", unknown, out)
	}
	if out := e.skyserve(exitFailed, append(slices.Clone(up), "--yes")...); !strings.Contains(out, "some reservations cannot be used as configured") || len(e.aws.RemainingResources()) > 0 {
		t.Errorf("%q remains after\n%s", e.aws.RemainingResources(), out)
	}
	e.aws.PutReservation("us-east-1", testcloud.Reservation{ID: "cr-0abc", Zone: "us-east-1b", Type: "g6.xlarge", Count: 1})
	if out := e.skyserve(exitOK, doctor...); !strings.Contains(out, "reservation cr-0abc: 1 of 1 x g6.xlarge free in us-east-1b") {
		t.Errorf("doctor got\n%s", out)
	}
	if out := e.skyserve(exitOK, append(slices.Clone(up), "--dry-run")...); strings.Contains(out, "cr-0abc") || !strings.Contains(out, "reserved g6.xlarge in us-east-1b") {
		t.Errorf("dry run got\n%s", out)
	}
}
