package plan

import "fmt"

// Verify returns an error for the first constraint of the problem that x violates, with the names of
// the model, region or GPU concerned. It checks the load independently of the rows that the search
// uses (constraint_checker.go): it places every window's load in the regions that may serve it.
// Counts and capacity are checked by the same functions as in the search.
func (p *Problem) Verify(x [][][]int) error {
	reachable := make([]regionSet, len(p.Regions))
	for j := range reachable {
		reachable[j] = p.withinReach(j)
	}
	for i := range p.Models {
		if err := p.verifyCounts(i, x[i]); err != nil {
			return err
		}
		if err := p.verifyLoad(i, x, reachable); err != nil {
			return err
		}
	}
	return p.verifyCapacity(x)
}

// verifyCounts checks model i's counts against the limits of the model and the local need of every
// region.
func (p *Problem) verifyCounts(i int, x [][]int) error {
	all := 0
	for j := range p.Regions {
		count := 0
		for k, n := range x[j] {
			switch {
			case n < 0:
				return fmt.Errorf("%s in %s on %s: count %d is negative", p.Models[i], p.Regions[j], p.GPUs[k], n)
			case n > 0 && p.ReplicaTPS[i][k] == 0:
				return fmt.Errorf("%s in %s on %s: %d replicas, but the model does not run there (its throughput there is 0)", p.Models[i], p.Regions[j], p.GPUs[k], n)
			}
			count += n
		}
		all += count
		served, minimum, maximum := p.Throughput(i, x[j]), limitOr(p.Min, i, j, 0), limitOr(p.Max, i, j, unlimited)
		switch {
		case count < minimum || count > maximum:
			return fmt.Errorf("%s in %s: replicas must be %d to %d, got %d", p.Models[i], p.Regions[j], minimum, maximum, count)
		case !meetsNeed(served, p.LocalDemand(i, j)):
			return fmt.Errorf("%s in %s: serves %g of the %g tokens per second that the region must serve itself", p.Models[i], p.Regions[j], served, p.LocalDemand(i, j))
		}
	}
	return p.verifyTotal(i, all)
}

// verifyCapacity checks the counts of all models against the capacity of regions.
func (p *Problem) verifyCapacity(x [][][]int) error {
	for j := range p.Regions {
		for k := range p.GPUs {
			used := 0
			for i := range p.Models {
				used += x[i][j][k]
			}
			if limit := limitOr(p.Capacity, j, k, unlimited); used > limit {
				return fmt.Errorf("%s on %s: %d replicas, capacity is %d", p.Regions[j], p.GPUs[k], used, limit)
			}
		}
	}
	return nil
}

// Throughput returns the throughput of counts x of model i in one region.
func (p *Problem) Throughput(i int, x []int) float64 {
	var sum float64
	for k, n := range x {
		sum += p.ReplicaTPS[i][k] * float64(n)
	}
	return sum
}

// verifyLoad checks that the load of every window can be served, with all regions and after the
// loss of each region that the plan must survive. reachable is, by region, the set of regions that
// may serve its load.
func (p *Problem) verifyLoad(i int, x [][][]int, reachable []regionSet) error {
	for w := range p.LoadTPS[i][0] {
		for lost := -1; lost < len(p.Regions); lost++ {
			if lost >= 0 && !p.mustSurviveLossOf(lost) {
				continue
			}
			load, unserved := p.unserved(i, w, lost, x, reachable)
			if meetsNeed(load-unserved, load) {
				continue
			}
			gone := ""
			if lost >= 0 {
				gone = " after the loss of " + p.Regions[lost]
			}
			return fmt.Errorf("%s in window %d%s: serves %g of %g tokens per second", p.Models[i], w, gone, load-unserved, load)
		}
	}
	return nil
}

// unserved returns model i's load in a window, and how much of it no region can serve when one is
// lost (-1 = none).
func (p *Problem) unserved(i, w, lost int, x [][][]int, reachable []regionSet) (load, unserved float64) {
	f := loadFlow{reachable: reachable, load: make([]float64, len(reachable)), free: make([]float64, len(reachable)), sent: make([][]float64, len(reachable))}
	for j := range reachable {
		f.load[j], f.sent[j] = p.LoadTPS[i][j][w], make([]float64, len(reachable))
		load += f.load[j]
		if j != lost {
			f.free[j] = p.Throughput(i, x[i][j])
		}
	}
	return load, f.maximise()
}

// loadFlow sends load to regions that may serve it, as a maximum flow.
type loadFlow struct {
	reachable []regionSet
	load      []float64   // load of a region that is not placed yet
	free      []float64   // free capacity of a region
	sent      [][]float64 // from a region to one that serves
}

// maximise computes the maximum flow and returns the load that it cannot place.
func (f *loadFlow) maximise() (unserved float64) {
	for j := range f.load {
		for f.load[j] > 0 && f.augment(j) {
		}
		unserved += f.load[j]
	}
	return unserved
}

// augment places some load of one region along a shortest augmenting path: a region without free
// capacity accepts it where load of a third region moves elsewhere. It returns false when there is no such
// path.
func (f *loadFlow) augment(start int) bool {
	server := make([]int, len(f.load)) // by region of load: the serving region that its load leaves
	client := make([]int, len(f.load)) // by serving region: the region of load that reached it
	for j := range client {
		server[j], client[j] = -1, -1
	}
	for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		for to := range f.load {
			if client[to] >= 0 || !f.reachable[from].has(to) {
				continue
			}
			client[to] = from
			if f.free[to] > 0 {
				f.sendAlong(start, to, server, client)
				return true
			}
			for other := range f.load {
				if other != start && server[other] < 0 && f.sent[other][to] > 0 {
					server[other] = to
					queue = append(queue, other)
				}
			}
		}
	}
	return false
}

// sendAlong sends as much as possible along the augmenting path that ends at a serving region.
func (f *loadFlow) sendAlong(start, end int, server, client []int) {
	amount := min(f.load[start], f.free[end])
	for from := client[end]; from != start; from = client[server[from]] {
		amount = min(amount, f.sent[from][server[from]])
	}
	f.load[start] -= amount
	f.free[end] -= amount
	for to := end; ; {
		from := client[to]
		f.sent[from][to] += amount
		if from == start {
			return
		}
		to = server[from]
		f.sent[from][to] -= amount
	}
}
