package telemetry

import (
	"slices"
	"time"
)

// GPUFigures are the figures of a GPU as its driver reports them; nil = not reported.
type GPUFigures struct {
	// Utilisation is the share of the last second or less in which the GPU ran a kernel, 0..1.
	Utilisation *float64 `json:"utilisation"`
	// MemoryUsed and Memory are in bytes.
	MemoryUsed *int64 `json:"memory_used_bytes"`
	Memory     *int64 `json:"memory_bytes"`
	// Temperature is in degrees Celsius.
	Temperature *float64 `json:"temperature_celsius"`
}

// ReplicaMachine is what the agent of a replica's machine reports about it.
type ReplicaMachine struct {
	Replica string `json:"replica"`
	// Version is the version of the engine; empty = it does not tell.
	Version string `json:"version"`
	// ReadySince is the time at which the engine became ready; nil = unknown, or it is not ready.
	ReadySince *time.Time `json:"ready_since"`
	// GPUs are the machine's GPUs, in the order of their driver; empty = unknown.
	GPUs []GPUFigures `json:"gpus"`
}

// MaxMachines is the maximum number of Scaling.Machines: one with 8 GPUs has about 1 KB, and a value of the store
// at most 1 MB.
const MaxMachines = 500

// ReadySince returns the time at which a completed start ended; nil = it is in progress or unknown.
func (s *Start) ReadySince() *time.Time {
	if s == nil || !s.Ready {
		return nil
	}
	at := s.StartedAt.Add(time.Duration(s.Seconds * float64(time.Second))).Truncate(time.Second)
	return &at
}

// addMachine adds what the agent of the replica's machine reports.
func (r *ReplicaSnapshot) addMachine(machines []ReplicaMachine) {
	i := slices.IndexFunc(machines, func(m ReplicaMachine) bool { return m.Replica == r.ID })
	if i < 0 {
		return
	}
	r.Version, r.ReadySince, r.GPUs = machines[i].Version, machines[i].ReadySince, machines[i].GPUs
}

// GPUSummary is the mean utilisation, the used share of memory and the highest temperature of GPUs; nil = no GPU
// reports it.
type GPUSummary struct{ Utilisation, Memory, Temperature *float64 }

// SummarizeGPUs returns the summary of the GPUs of one or more replicas.
func SummarizeGPUs(gpus []GPUFigures) (s GPUSummary) {
	var busy, reporting float64
	var used, memory int64
	for _, g := range gpus {
		if g.Utilisation != nil {
			busy, reporting = busy+*g.Utilisation, reporting+1
		}
		if g.MemoryUsed != nil && g.Memory != nil && *g.Memory > 0 {
			used, memory = used+*g.MemoryUsed, memory+*g.Memory
		}
		if t := g.Temperature; t != nil && (s.Temperature == nil || *t > *s.Temperature) {
			s.Temperature = t
		}
	}
	if reporting > 0 {
		mean := busy / reporting
		s.Utilisation = &mean
	}
	if memory > 0 {
		share := float64(used) / float64(memory)
		s.Memory = &share
	}
	return s
}
