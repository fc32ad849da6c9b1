package lbd

import (
	"fmt"
	"strings"

	"skyserve/internal/telemetry"
	"skyserve/lbd/probe"
	"skyserve/lbd/proxy"
)

// applyListed passes a replica's model list to the runtime, and logs declared adapters that are found not to
// be served.
func (f *fleet) applyListed(id string, list probe.ModelList) {
	s := proxy.ServedModels{Adapters: list.Adapters, Aliases: list.Aliases, MaxModelLen: list.MaxModelLen}
	if list.Complete {
		s.Names = list.Names
	}
	f.runtime.SetServedModels(id, s)
	f.logUnserved(f.runtime.UnservedAdapters())
}

// logUnserved logs the adapters that were not in the last call.
func (f *fleet) logUnserved(adapters []proxy.UnservedAdapter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[string]bool{}
	for _, u := range adapters {
		if now[u.Adapter] = true; !f.unserved[u.Adapter] {
			f.log.Warn(unservedMessage(u), "next_step", unservedNextStep(u))
		}
	}
	f.unserved = now
}

// adapterAlerts returns an alert for each declared adapter that no replica serves.
func (b *balancer) adapterAlerts() []telemetry.Alert {
	if b.runtime == nil {
		return nil
	}
	var alerts []telemetry.Alert
	for _, u := range b.runtime.UnservedAdapters() {
		alerts = append(alerts, telemetry.Alert{
			Severity: telemetry.SeverityWarning, Kind: telemetry.AlertAdapter, Region: b.cfg.Region, Object: u.Adapter,
			Message: unservedMessage(u), NextStep: unservedNextStep(u),
		})
	}
	return alerts
}

// maxListedNames is the maximum number of names in an alert: an engine may serve many adapters.
const maxListedNames = 10

func unservedMessage(u proxy.UnservedAdapter) string {
	listed := u.Listed
	more := ""
	if len(listed) > maxListedNames {
		more = fmt.Sprintf(" and %d more", len(listed)-maxListedNames)
		listed = listed[:maxListedNames]
	}
	of := fmt.Sprintf("no replica of model %q serves it", u.Model)
	if u.Swapped {
		of = fmt.Sprintf("the replicas list model %q as an adapter of %q", u.Model, u.Adapter)
	}
	return fmt.Sprintf("adapter %q is declared for model %q, but %s; the replicas list %s%s", u.Adapter, u.Model, of, strings.Join(listed, ", "), more)
}

func unservedNextStep(u proxy.UnservedAdapter) string {
	if u.Swapped {
		return fmt.Sprintf("swap the names: --lora %s=%s, or lora of model %s in service.yaml", u.Adapter, u.Model, u.Adapter)
	}
	return "load the adapter into the engines, or remove it from --lora or from lora of the model in service.yaml"
}
