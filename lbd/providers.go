package lbd

import (
	"fmt"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/proxy"
)

// readProviders returns the external APIs of a configuration with their keys.
func readProviders(p *problems, cfg service.BalancerConfig) []proxy.ProviderAccess {
	var all []proxy.ProviderAccess
	for i, pr := range cfg.Providers {
		access := proxy.ProviderAccess{Provider: pr}
		if pr.APIKey != "" {
			access.Key = readKeyFrom(p, fmt.Sprintf("providers[%d].api_key", i), pr.APIKey)
		}
		all = append(all, access)
	}
	return all
}

// checkProviders checks the external APIs, and that every fallback exists.
func checkProviders(p *problems, cfg service.BalancerConfig) {
	seen := map[string]string{}
	for i, pr := range cfg.Providers {
		key := fmt.Sprintf("providers[%d]", i)
		checkURL(p, key, pr.URL)
		if !service.SafeProviderURL(pr.URL) {
			p.addProblem(key+".url", "must start with https://: prompts and the API key leave the machine", "")
		}
		if pr.Name == "" {
			p.addProblem(key+".name", "is required", "")
		}
		claimID(p, seen, key, pr.Name)
		if pr.Concurrent < 0 || pr.RequestsPerMinute < 0 || pr.TokensPerMinute < 0 || pr.USDPerDay < 0 {
			p.addProblem(key, "limits must be at least 0", "")
		}
		for j, m := range pr.Models {
			if pr.USDPerDay > 0 && m.Price == nil {
				p.addProblem(fmt.Sprintf("%s.models[%d].price", key, j), "is required with usd_per_day", "")
			}
		}
	}
	targets := service.ProviderTargets(cfg.Providers)
	for i, m := range cfg.Models {
		for j, name := range m.Fallback {
			isModel := slices.ContainsFunc(cfg.Models, func(other service.BalancerModel) bool { return other.Name == name })
			if name == m.Name || !isModel && !slices.Contains(targets, name) {
				p.addProblem(fmt.Sprintf("models[%d].fallback[%d]", i, j), fmt.Sprintf("must be another model or PROVIDER/MODEL, got %q", name), "")
			}
		}
		if m.FallbackAfter < 0 {
			p.addProblem(fmt.Sprintf("models[%d].fallback_after", i), fmt.Sprintf("must be at least 0, got %s", m.FallbackAfter), "")
		}
	}
}

// fallbackCauses describes the rejections that lead to a fallback.
var fallbackCauses = map[string]string{
	core.RejectNoReplica:        "no replica serves it",
	core.RejectNoAdapter:        "no replica serves the requested adapter",
	core.RejectQueueFull:        "its queue is full",
	core.RejectWaitExceeded:     "no replica was available in time",
	core.RejectStartExceeded:    "no replica became ready in time",
	core.RejectFailed:           "its replica failed",
	core.RejectRetriesExhausted: "every attempt failed",
	core.RejectRetryBudget:      "the retry budget is exhausted",
	core.RejectRefused:          "every replica rejected the request",
}

// fallbackAlerts returns an alert for each model whose requests fallbacks serve. A standalone balancer has no service
// that 'skyserve status' could show.
func fallbackAlerts(region service.Region, standalone bool, statuses []proxy.FallbackStatus) []telemetry.Alert {
	next := "run 'skyserve status' to see the replicas of "
	if standalone {
		next = "view 2 of 'skyserve top' shows the replicas of "
	}
	var alerts []telemetry.Alert
	for _, f := range statuses {
		cause := fallbackCauses[f.Reason]
		message := fmt.Sprintf("requests for %s are served by its fallback %s: %s", f.Model, f.To, cause)
		if f.Failure != "" {
			message = fmt.Sprintf("requests for %s go to its fallback %s: %s; a fallback failed within the last minute: %s", f.Model, f.To, cause, f.Failure)
		}
		alerts = append(alerts, telemetry.Alert{
			Severity: telemetry.SeverityWarning, Kind: telemetry.AlertFallback, Region: region, Object: f.Model, Since: &f.Since,
			Message: message, NextStep: next + f.Model,
		})
	}
	return alerts
}
