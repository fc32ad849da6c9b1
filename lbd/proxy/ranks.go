package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// headerRank selects the data-parallel rank of a request. vLLM and SGLang read it.
const headerRank = "X-Data-Parallel-Rank"

// rank is a target of requests: a replica, or one of its data-parallel ranks.
type rank struct {
	*replica
	number int
}

// ranks returns the replica's targets, ordered by number.
func (r *replica) ranks() []rank {
	all := make([]rank, r.cfg.Ranks())
	for i := range all {
		all[i] = rank{r, i}
	}
	return all
}

func (k rank) id() string { return k.cfg.RankID(k.number) }

// tokens counts the tokens that the rank streamed since the last tick.
func (k rank) tokens() *atomic.Int64 { return &k.count.tokens[k.number] }

// setRankHeader sets the rank header of a request if the engine has several ranks.
func (k rank) setRankHeader(h http.Header) {
	if k.cfg.Ranks() > 1 {
		h.Set(headerRank, strconv.Itoa(k.number))
	}
}

// coreInfo describes the rank to core. Each rank of an engine has its own queue, and receives at most
// as many requests as it runs concurrently.
func (k rank) coreInfo() *core.ReplicaInfo {
	i := &core.ReplicaInfo{ID: k.id(), Model: k.cfg.Model, Process: processName(k.base, k.cfg.Model)}
	if k.cfg.Ranks() > 1 {
		i.Engine, i.MaxOutstanding = k.cfg.ID, k.cfg.MaxNumSeqs
	}
	return i
}

// addRanks adds a replica's targets; the lock must be held. If the replica drains, they receive no requests.
func (r *Runtime) addRanks(rep *replica, draining bool) {
	r.replicas[rep.cfg.ID] = rep
	for _, k := range rep.ranks() {
		r.ranks[k.id()] = k
		info := k.coreInfo()
		info.Draining = draining
		r.stepCore(core.Event{Kind: core.EventReplicaAdded, Replica: info})
	}
}

// removeRanks removes a replica's targets; the lock must be held.
func (r *Runtime) removeRanks(rep *replica) {
	delete(r.replicas, rep.cfg.ID)
	delete(r.served, rep.cfg.ID)
	for _, k := range rep.ranks() {
		delete(r.ranks, k.id())
		r.stepCore(core.Event{Kind: core.EventReplicaRemoved, Target: k.id()})
	}
}

// checkRanks rejects impossible numbers of ranks.
func checkRanks(cfg service.ReplicaConfig) error {
	switch {
	case cfg.DataParallel < 0 || cfg.DataParallel > service.MaxDataParallel:
		return fmt.Errorf("data_parallel must be from 0 to %d, got %d", service.MaxDataParallel, cfg.DataParallel)
	case cfg.MaxNumSeqs < 0:
		return fmt.Errorf("max_num_seqs must be at least 0, got %d", cfg.MaxNumSeqs)
	}
	return nil
}
