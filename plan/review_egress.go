package plan

// bytesPerPromptToken is the size of a prompt token on the network, for English text.
const bytesPerPromptToken = 4.0

// setEgress sets the cost of load sent out of each region with an egress price. A forwarded prompt is
// sent whole, including the tokens that hit the other region's cache. With several models the one
// with the highest hit rate decides, so that the cost of prompts is never underestimated. Responses are not counted, and
// the plan says so: they are egress of the region that serves them, and the cost depends only on the origin.
func (r *review) setEgress() {
	uncached := 1.0
	for _, share := range r.uncached {
		uncached = min(uncached, share)
	}
	hasPrice := false
	prices := make([]float64, len(r.problem.Regions))
	for j := range r.spec.Regions {
		perGB := r.spec.Regions[j].EgressPerGB
		prices[j] = perGB * bytesPerPromptToken * 1e6 / 1e9 / max(uncached, minUncached)
		if hasPrice = hasPrice || perGB > 0; perGB > 0 {
			r.assume("%s: egress at $%g per GB and %g bytes per prompt token: $%.2g per million forwarded tokens", r.spec.Regions[j].Name, perGB, bytesPerPromptToken, prices[j])
		}
	}
	if hasPrice {
		r.problem.Egress = prices
		r.assume("the cost of egress is that of forwarded prompts: responses, which leave the region that serves them, are not counted")
	}
}

// minUncached is the minimum uncached share of prompts in the egress cost.
const minUncached = 0.01
