package plan

import (
	"cmp"
	"fmt"
	"slices"

	"skyserve/internal/catalogue"
)

// replicaBudget returns the part of the service's budget that is left for replicas, in USD per hour; 0
// without a budget.
func (r *review) replicaBudget() float64 {
	budget := r.spec.BudgetPerHour()
	if budget == 0 {
		return 0
	}
	return max(budget-catalogue.BalancersPerHour(r.spec), 1e-9) // not 0, which means no budget
}

// addition is one more replica of model i in region j on GPU k.
type addition struct {
	i, j, k int
	minimum bool    // the replica is needed for the minimum of the model in the region
	price   float64 // USD per hour for a throughput of one prompt token per second
}

// cutToBudget removes additions from counts x so that they cost at most a budget in USD per hour. The budget does not
// limit the running replicas. A model whose plan does not raise the cost is not cut. Other models get their additions
// one by one: first those needed for a minimum, then those with the lowest price per throughput. A model that does not
// get all of its additions keeps the replicas that the plan removes. cut describes the missing additions. cost returns
// the billed price of counts.
func (p *Problem) cutToBudget(x [][][]int, budget float64, cost func([][][]int) float64) (out [][][]int, cut []string) {
	if budget == 0 || cost(x) <= budget {
		return x, nil
	}
	out = make([][][]int, len(x))
	var growing []int
	for i := range x {
		out[i] = p.Current[i]
		if with := slices.Clone(out); cost(replaceModel(p.Current, i, x[i])) <= cost(p.Current) {
			with[i] = x[i]
			out = with
			continue
		}
		growing = append(growing, i)
	}
	missing := map[int]map[[2]int]int{}
	for _, a := range p.additions(x, growing) {
		with := replaceModel(out, a.i, addReplica(out[a.i], a.j, a.k))
		if cost(with) <= budget {
			out = with
			continue
		}
		if missing[a.i] == nil {
			missing[a.i] = map[[2]int]int{}
		}
		missing[a.i][[2]int{a.j, a.k}]++
	}
	for _, i := range growing {
		if missing[i] == nil {
			out = replaceModel(out, i, x[i])
		}
	}
	return out, p.describeCut(x, missing)
}

// additions returns the replicas that counts x add to models, in the order in which the budget is spent on them.
func (p *Problem) additions(x [][][]int, models []int) []addition {
	var all []addition
	for _, i := range models {
		for j := range p.Regions {
			have := 0
			for k := range p.GPUs {
				have += p.Current[i][j][k]
			}
			for k := range p.GPUs {
				for range max(0, x[i][j][k]-p.Current[i][j][k]) {
					price := p.Price(j, k)
					if p.ReplicaTPS[i][k] > 0 {
						price /= p.ReplicaTPS[i][k]
					}
					all = append(all, addition{i, j, k, have < limitOr(p.Min, i, j, 0), price})
					have++
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b addition) int {
		if a.minimum != b.minimum {
			if a.minimum {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.price, b.price)
	})
	return all
}

// replaceModel returns counts with other counts of one model.
func replaceModel(x [][][]int, i int, counts [][]int) [][][]int {
	out := slices.Clone(x)
	out[i] = counts
	return out
}

// addReplica returns the counts of a model with one more replica.
func addReplica(counts [][]int, j, k int) [][]int {
	out := slices.Clone(counts)
	out[j] = slices.Clone(out[j])
	out[j][k]++
	return out
}

// describeCut returns a line for each model, region and GPU with fewer replicas than planned.
func (p *Problem) describeCut(x [][][]int, missing map[int]map[[2]int]int) []string {
	cut := []string{}
	for i, model := range p.Models {
		for j, region := range p.Regions {
			for k, gpu := range p.GPUs {
				if n := missing[i][[2]int{j, k}]; n > 0 {
					cut = append(cut, fmt.Sprintf("%s in %s: %d of %d additional %s exceed the budget", model, region, n, x[i][j][k]-p.Current[i][j][k], gpu))
				}
			}
		}
	}
	return cut
}
