package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// headerRank names the data-parallel rank that a request is for, as vLLM and
// SGLang read it.
const headerRank = "X-Data-Parallel-Rank"

// rank is a target that requests are sent to: a replica, or one data-parallel
// rank of one.
type rank struct {
	*replica
	number int
}

// ranks are the replica's targets, in the order of their numbers.
func (r *replica) ranks() []rank {
	all := make([]rank, r.cfg.Ranks())
	for i := range all {
		all[i] = rank{r, i}
	}
	return all
}

func (k rank) id() string { return k.cfg.RankID(k.number) }

// tokens counts what the rank streamed since the last tick.
func (k rank) tokens() *atomic.Int64 { return &k.count.tokens[k.number] }

// mark addresses a request to the rank, where the engine has several.
func (k rank) mark(h http.Header) {
	if k.cfg.Ranks() > 1 {
		h.Set(headerRank, strconv.Itoa(k.number))
	}
}

// info introduces the rank to core. An engine with ranks queues in each by
// itself: none is sent more than it runs at once.
func (k rank) info() *core.ReplicaInfo {
	i := &core.ReplicaInfo{ID: k.id(), Model: k.cfg.Model, Process: processName(k.base, k.cfg.Model)}
	if k.cfg.Ranks() > 1 {
		i.Engine, i.MaxOutstanding = k.cfg.ID, k.cfg.MaxNumSeqs
	}
	return i
}

// addRanks makes a replica's targets known; the lock is held.
func (r *Runtime) addRanks(rep *replica) {
	r.replicas[rep.cfg.ID] = rep
	for _, k := range rep.ranks() {
		r.ranks[k.id()] = k
		r.step(core.Event{Kind: core.EventReplicaAdded, Replica: k.info()})
	}
}

// removeRanks forgets a replica's targets; the lock is held.
func (r *Runtime) removeRanks(rep *replica) {
	delete(r.replicas, rep.cfg.ID)
	for _, k := range rep.ranks() {
		delete(r.ranks, k.id())
		r.step(core.Event{Kind: core.EventReplicaRemoved, Target: k.id()})
	}
}

// checkRanks refuses ranks that no engine has.
func checkRanks(cfg service.ReplicaConfig) error {
	switch {
	case cfg.DataParallel < 0 || cfg.DataParallel > service.MaxDataParallel:
		return fmt.Errorf("data_parallel must be from 0 to %d, got %d", service.MaxDataParallel, cfg.DataParallel)
	case cfg.MaxNumSeqs < 0:
		return fmt.Errorf("max_num_seqs must not be below 0, got %d", cfg.MaxNumSeqs)
	}
	return nil
}
