package provision

import (
	"strconv"

	"skyserve/internal/service"
)

// SimEngineArgs returns the command line arguments with which skyserve runs a simulated engine for a
// model on host:port.
func SimEngineArgs(m *service.Model, at MachineEndpoints) []string {
	e := &m.Engine
	args := []string{"engine", "--listen", at.Engine, "--model", m.Name}
	for _, a := range m.Aliases {
		args = append(args, "--alias", a)
	}
	for _, a := range e.Adapters() {
		args = append(args, "--lora", a)
	}
	optional := func(flag, value string, isSet bool) {
		if isSet {
			args = append(args, flag, value)
		}
	}
	optional("--profile", e.Profile, e.Profile != "")
	optional("--kv-tokens", strconv.Itoa(e.KVTokens), e.KVTokens > 0)
	optional("--speed", strconv.FormatFloat(e.Speed, 'g', -1, 64), e.Speed > 0)
	optional("--flavor", e.Flavor, e.Flavor != "")
	optional("--max-num-seqs", strconv.Itoa(e.MaxNumSeqs), e.MaxNumSeqs > 0)
	optional("--data-parallel", strconv.Itoa(e.DataParallel), e.DataParallel > 1)
	optional("--cache-events", at.CacheEvents, e.PublishesCacheEvents())
	return args
}
