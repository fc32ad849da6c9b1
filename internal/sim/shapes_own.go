package sim

import (
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/internal/sim/workload"
)

// ownShapes are scenarios without a paper: mixed accelerators, a burst, and failures.
var ownShapes = []shape{
	{
		name: "mixed-gpu-chat", title: "chats on 6 L4 and 2 H100 in one service", workload: workload.Arena,
		replicas: [3]int{3, 2, 3}, clients: [3]int{200, 80, 200}, change: mixGPUs,
	},
	{
		name: "mixed-gpu-tree", title: "trees of 15 requests on 10 L4 and 2 H100 in one service", workload: workload.ToT15,
		replicas: [3]int{4, 4, 4}, clients: [3]int{80, 40, 80}, change: mixGPUs,
	},
	{
		name: "burst", title: "chats in an open loop with an 8x surge in the US for 20 s, 8 replicas", workload: workload.Arena,
		replicas: [3]int{3, 2, 3}, clients: [3]int{80, 80, 80},
		change: func(s *Scenario) {
			s.Rate = 3
			s.Surges = []Surge{{Region: "us", From: 120 * time.Second, To: 140 * time.Second, Factor: 8}}
		},
	},
	{
		name: "completion", title: "code completion in an open loop: long prompts that share nothing, 8 replicas near their prefill capacity", workload: workload.Completion,
		replicas: [3]int{3, 2, 3}, clients: [3]int{80, 80, 80},
		change: func(s *Scenario) { s.Rate = 5.8 },
	},
	{
		name: "shared-contexts", title: "questions about 150 long contexts in an open loop, 8 H100 whose memory holds each once", workload: workload.Contexts,
		replicas: [3]int{8}, clients: [3]int{80},
		change: func(s *Scenario) {
			s.Profile = h100
			s.Profile.Name = "h100-llama3.1-8b-308k"
			s.Profile.KVTokens = 308_000 // the contexts and questions are 73 % of all replicas' memory
			s.Engines = []engine.Profile{s.Profile}
			s.Rate, s.Duration = 40, 120*time.Second
		},
	},
	{
		name: "failover", title: "chats with consecutive failures of a replica, a link and a balancer, 12 replicas", workload: workload.Arena,
		replicas: [3]int{4, 4, 4}, clients: [3]int{120, 40, 40},
		change: func(s *Scenario) {
			s.Faults = []Fault{
				{Kind: ReplicaDown, Replica: "us-01", From: 100 * time.Second, To: 160 * time.Second},
				{Kind: LinkCut, Region: "us", Peer: "eu", From: 200 * time.Second, To: 240 * time.Second},
				{Kind: BalancerDown, Region: "eu", From: 280 * time.Second, To: 320 * time.Second},
			}
		},
	},
	{
		name: "failover-pairs", title: "chats with two balancers per region, one of which fails in each, 12 replicas", workload: workload.Arena,
		replicas: [3]int{4, 4, 4}, clients: [3]int{120, 40, 40},
		change: func(s *Scenario) {
			for i := range s.Regions {
				s.Regions[i].Balancers = 2
				from := time.Duration(100+80*i) * time.Second
				s.Faults = append(s.Faults, Fault{Kind: BalancerDown, Region: s.Regions[i].Name, Balancer: 1 + i%2, From: from, To: from + 60*time.Second})
			}
		},
	},
}

// mixGPUs makes the first replica in the US and in Asia an H100.
func mixGPUs(s *Scenario) {
	for i := range s.Regions {
		r := &s.Regions[i]
		if r.Name == "eu" {
			continue
		}
		r.Profiles = append(r.Profiles, h100)
		for len(r.Profiles) < r.Replicas {
			r.Profiles = append(r.Profiles, s.Profile)
		}
	}
}

// h100 is the built-in profile of that name.
var h100 = profileNamed("h100-llama3.1-8b")

// profileNamed returns a built-in profile, which must exist.
func profileNamed(name string) engine.Profile {
	p, err := engine.FindProfile(name)
	if err != nil {
		panic("sim: " + err.Error())
	}
	return p
}
