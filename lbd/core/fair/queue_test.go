package fair

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fatal is the common interface of rapid and the testing package.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// job is a request of the tests: its level is fixed, its stage changes after a while.
type job struct {
	Item[job]
	level int
	turns time.Duration
}

func place(j *job, now time.Duration) Position {
	s := Position{Level: j.level, Stage: 1, ChangesAt: Never}
	if now < j.turns {
		s.Stage, s.ChangesAt = 2, j.turns
	}
	return s
}

// backwards puts the late stage first.
func backwards(j *job, now time.Duration) Position {
	s := place(j, now)
	s.Stage = -s.Stage
	return s
}

func newJob(seq int, at time.Duration, tenant string, sendCharge int64) *job {
	j := &job{}
	j.Init(j, tenant, false, sendCharge)
	j.Seq, j.SortTime, j.WaitingSince = uint64(seq), at, at
	return j
}

func newJobs() *Queue[job] {
	q := &Queue[job]{}
	q.Init(place)
	return q
}

// run sends the first request, which ends immediately.
func run(q *Queue[job], now time.Duration) *job {
	j := q.First(nil, now, 1)[0]
	q.Remove(&j.Item)
	q.Sent(&j.Item)
	q.Charge(&j.Item, j.sendCharge)
	q.Ended(&j.Item)
	return j
}

// After random operations, all counts of waiting and of parked requests are consistent.
func TestCountsAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q, now := newJobs(), time.Duration(0)
		waiting, parked, running := map[*job]bool{}, map[*job]bool{}, []*job{}
		pick := func(from []*job) *job { return rapid.SampledFrom(from).Draw(rt, "which") }
		for seq := range rapid.IntRange(1, 80).Draw(rt, "changes") {
			now += time.Duration(rapid.IntRange(0, 2000).Draw(rt, "ms")) * time.Millisecond
			switch rapid.IntRange(0, 7).Draw(rt, "change") {
			case 0, 1:
				j := newJob(seq, now, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "tenant"), 10)
				j.level, j.turns = rapid.IntRange(0, Levels-1).Draw(rt, "level"), now+3*time.Second
				q.Push(now, &j.Item)
				waiting[j] = true
			case 2:
				j := newJob(seq, now, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "tenant"), 10)
				j.Init(j, j.tenant, true, 10)
				q.Park(&j.Item)
				parked[j] = true
			case 3:
				if j := q.Release(now); j != nil {
					delete(parked, j)
					waiting[j] = true
				}
			case 4:
				if all := q.AllParked(q.Waiting(nil)); len(all) > 0 {
					j := pick(all)
					q.Remove(&j.Item)
					delete(waiting, j)
					delete(parked, j)
				}
			case 5:
				if list := q.First(nil, now, 1); len(list) > 0 {
					q.Remove(&list[0].Item)
					q.Sent(&list[0].Item)
					q.Charge(&list[0].Item, 10)
					delete(waiting, list[0])
					running = append(running, list[0])
				}
			case 6:
				if len(running) > 0 {
					q.ChargeOutstanding(func(*job) int64 { return 20 })
					q.Ended(&running[0].Item)
					running = running[1:]
				}
			default:
				q.Reorder(now, rapid.SampledFrom([]Order[job]{place, backwards}).Draw(rt, "order"), func(j *job) { j.SortTime++ })
			}
			check(rt, q, len(waiting), len(parked))
		}
	})
}

// check compares a queue's counts with each other.
func check(t fatal, q *Queue[job], want, apart int) {
	t.Helper()
	byTenant, inLanes, deferred := 0, 0, 0
	for a := q.byWaiting.first(); a != nil; a = q.byWaiting.nextItem(a) {
		byTenant += a.waiting
	}
	for i := range q.levels {
		l := &q.levels[i]
		for a := l.accounts.first(); a != nil; a = l.accounts.nextItem(a) {
			for r := a.levels[i].requests.first(); r != nil; r = a.levels[i].requests.nextItem(r) {
				inLanes++
			}
		}
	}
	for _, j := range q.Waiting(nil) {
		if j.deferred {
			deferred++
		}
	}
	if q.Len() != want || byTenant != want || inLanes != want || len(q.Waiting(nil)) != want || q.Deferred() != deferred {
		t.Fatalf("%d wait: counted %d, %d by tenant, %d in tenants' levels, %d in all levels; %d deferred, counted %d",
			want, q.Len(), byTenant, inLanes, len(q.Waiting(nil)), deferred, q.Deferred())
	}
	heldApart := 0
	for _, tenant := range []string{"a", "b", "c"} {
		heldApart += q.ParkedOf(tenant)
	}
	if q.Parked() != apart || len(q.AllParked(nil)) != apart || heldApart != apart {
		t.Fatalf("%d are held apart: counted %d, %d listed, %d by tenant", apart, q.Parked(), len(q.AllParked(nil)), heldApart)
	}
}

// Tenants without requests are forgotten: if there are too many, and after a while.
func TestTenantsAreForgotten(t *testing.T) {
	q := newJobs()
	for i := range 3 * maxIdleAccounts {
		q.Push(0, &newJob(i, 0, fmt.Sprint(i), 1).Item)
		run(q, 0)
	}
	if q.Tenants() != maxIdleAccounts || q.accounts[fmt.Sprint(3*maxIdleAccounts-1)] == nil {
		t.Errorf("%d accounts are kept, want the last %d", q.Tenants(), maxIdleAccounts)
	}
	q.Push(time.Minute, &newJob(1<<20, time.Minute, "waits", 1).Item)
	q.ForgetIdle(idleTTL)
	if q.Tenants() != 1 || q.idleCount != 0 || q.idleFirst != nil || q.idleLast != nil {
		t.Errorf("%d accounts are kept after a while, %d of them idle; want the one that waits", q.Tenants(), q.idleCount)
	}
	q.ForgetIdle(time.Hour)
	if q.accounts["waits"] == nil {
		t.Error("a tenant with a request waiting was forgotten")
	}
}

// Forgetting a tenant gives it no advantage: it starts at the current level of the queue.
func TestForgottenTenantStartsLikeNew(t *testing.T) {
	q := newJobs()
	q.Push(0, &newJob(0, 0, "a", 5000).Item)
	run(q, 0)
	q.ForgetIdle(time.Hour)
	q.Push(time.Hour, &newJob(1, time.Hour, "b", 1).Item)
	if got := q.Served("b"); got != 5000 {
		t.Errorf("a new tenant begins at %d tokens, want where the last one was, at 5000", got)
	}
}
