package sim

import (
	"time"

	"skyserve/internal/sim/engine"
)

// UseA100 moves SageFleet's models to A100 (SageServe appendix A): llama2-70b to four and bloom-176b to
// eight, fitted to Splitwise's measurements as on H100; the small models run on A100 anyway.
//
// The paper reports that models load more slowly there, without a figure: twice the time is assumed, as
// PCIe 4 has half the bandwidth of PCIe 5. It does not report deadlines for A100 either: bloom-176b
// takes two seconds to prefill the longest prompt, so first tokens of IW-F are due after three.
func UseA100(s *FleetScenario) {
	bloom, _ := engine.FindProfile("a100-bloom-176b")
	s.Models[0].Profile = fleetProfile("a100x4-llama2-70b", 56_600, 365*time.Nanosecond,
		"128=63654us,256=78571us,512=126978us,1024=240133us,2048=480081us",
		"1=43858us,2=44316us,8=44316us,16=45158us,32=45624us,64=59505us")
	s.Models[1].Profile = bloom
	s.Deadlines.Fast = 3 * time.Second
	t := &s.Starts
	t.Reclaim, t.ReclaimMax, t.Redeploy, t.Fetch = 2*t.Reclaim, 2*t.ReclaimMax, 2*t.Redeploy, 2*t.Fetch
}
