package plan

// promptBytes is how long a prompt token is on the wire, in bytes: that of English
// text. Answers travel too, but they enter the region that pays for its prompts.
const promptBytes = 4.0

// egress fills in what it costs to send load out of each region that states a price.
// A forwarded prompt is sent in whole, what the other region's cache spares of it
// too; with several models the one whose prompts are spared most decides, so that
// sending is never thought too cheap.
func (r *review) egress() {
	uncached := 1.0
	for _, share := range r.uncached {
		uncached = min(uncached, share)
	}
	stated := false
	prices := make([]float64, len(r.p.Regions))
	for j := range r.spec.Regions {
		perGB := r.spec.Regions[j].EgressPerGB
		prices[j] = perGB * promptBytes * 1e6 / 1e9 / max(uncached, minUncached)
		if stated = stated || perGB > 0; perGB > 0 {
			r.assume("%s: $%g a GB that leaves it, %g bytes a prompt token: $%.2g a million tokens sent away", r.spec.Regions[j].Name, perGB, promptBytes, prices[j])
		}
	}
	if stated {
		r.p.Egress = prices
	}
}

// minUncached bounds how much of the prompts caches are thought to spare here.
const minUncached = 0.01
