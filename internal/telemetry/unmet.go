package telemetry

import (
	"cmp"
	"fmt"
	"strings"

	"skyserve/internal/service"
)

// Unmet is a kind of GPU of which fewer replicas run than the plan in force wants.
type Unmet struct {
	Model  string
	Region service.Region
	TargetReplicas
	// Running is how many replicas run on it.
	Running int
}

// String says it in a few words: us-east-1 runs 1 of 2 on spot H100.
func (u Unmet) String() string {
	gpus := u.GPU
	if u.GPUs > 1 {
		gpus = fmt.Sprintf("%dx%s", u.GPUs, u.GPU)
	}
	on := strings.TrimSpace(string(u.Capacity) + " " + gpus)
	return fmt.Sprintf("%s runs %d of %d on %s", u.Region.Place(), u.Running, u.Count, on)
}

// Unmet lists where what runs differs from what the plan wants replicas to run on. Regions
// whose replicas do not say how they are paid for are held against GPUs alone; targets that
// name no GPU say nothing.
func (s *Snapshot) Unmet() []Unmet {
	var out []Unmet
	for _, t := range s.Targets {
		tells := s.tellsCapacity(t)
		byGPU := map[string]int{}
		for _, c := range t.Replicas {
			byGPU[c.GPU] += c.Count
		}
		for _, c := range t.Replicas {
			if !tells {
				c.Capacity, c.Count = "", byGPU[c.GPU]
				delete(byGPU, c.GPU) // one line for all capacity types of a GPU
			}
			if running := s.running(t, c); c.GPU != "" && running < c.Count {
				out = append(out, Unmet{t.Model, t.Region, c, running})
			}
		}
	}
	return out
}

// running is how many replicas of a target's model and region run on a kind of GPU, paid for
// as it says where it does.
func (s *Snapshot) running(t Target, on TargetReplicas) (n int) {
	s.eachOf(t, func(r *ReplicaSnapshot) {
		if r.GPU == on.GPU && (on.Capacity == "" || r.Capacity == on.Capacity) {
			n++
		}
	})
	return n
}

// tellsCapacity says whether all replicas of a target tell how they are paid for.
func (s *Snapshot) tellsCapacity(t Target) bool {
	tells := true
	s.eachOf(t, func(r *ReplicaSnapshot) { tells = tells && r.Capacity != "" })
	return tells
}

// eachOf is told of each replica of a target's model and region that is not donated.
func (s *Snapshot) eachOf(t Target, f func(*ReplicaSnapshot)) {
	for i := range s.Regions {
		for k := range s.Regions[i].Replicas {
			if r := &s.Regions[i].Replicas[k]; cmp.Or(r.Region, s.Regions[i].Name) == t.Region && r.Model == t.Model && !r.Donated {
				f(r)
			}
		}
	}
}

// UnmetLine says in a line where what runs differs from the plan; empty where it does not.
func (s *Snapshot) UnmetLine() string {
	var all []string
	for _, u := range s.Unmet() {
		all = append(all, u.String())
	}
	if len(all) == 0 {
		return ""
	}
	return "not as planned: " + strings.Join(all, ", ")
}
