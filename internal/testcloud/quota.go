package testcloud

import (
	"encoding/json"
	"net/http"
	"strings"
)

// quotaRequest is a request for a quota of EC2.
type quotaRequest struct {
	ServiceCode, QuotaCode string
}

type quotaDoc struct {
	ServiceCode, QuotaCode string
	Value                  float64
}

// getQuota serves the actions of Service Quotas. The caller holds mu.
func (a *AWS) getQuota(c awsCall) (any, error) {
	var requested quotaRequest
	if err := json.Unmarshal(c.body, &requested); err != nil {
		return nil, badRequest("SerializationException", "%v", err)
	}
	known := map[string]map[string]float64{"GetServiceQuota": a.QuotaLimits, "GetAWSDefaultServiceQuota": a.DefaultQuotaLimits}[c.action]
	value, has := known[requested.QuotaCode]
	if !has || requested.ServiceCode != "ec2" {
		return nil, badRequest("NoSuchResourceException", "The request failed because the specified quota %s does not exist.", requested.QuotaCode)
	}
	return map[string]quotaDoc{"Quota": {requested.ServiceCode, requested.QuotaCode, value}}, nil
}

// writeJSON11 writes a response in the JSON 1.1 protocol.
func writeJSON11(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the caller may have disconnected
}

// quotaCode returns the quota that an instance type counts against; empty if it is not emulated.
func quotaCode(instanceType, market string) string {
	codes := map[string]string{"g on_demand": "L-DB2E81BA", "g spot": "L-3819A6DF", "p on_demand": "L-417A185B", "p spot": "L-C4BD4855"}
	if strings.HasPrefix(instanceType, "p4") && market == "spot" {
		return "L-7212CCBC"
	}
	family := instanceType[:1]
	if strings.HasPrefix(instanceType, "vt") {
		family = "g"
	}
	return codes[family+" "+market]
}

// admitQuota rejects an instance that would exceed a quota.
func (r *ec2Region) admitQuota(i *ec2Instance) error {
	code := quotaCode(i.kind, i.market)
	limit, limited := r.aws.QuotaLimits[code]
	if !limited {
		return nil
	}
	used := ec2Types[i.kind]
	for _, other := range r.instances {
		if other.usesCapacity() && quotaCode(other.kind, other.market) == code {
			used += ec2Types[other.kind]
		}
	}
	switch {
	case float64(used) <= limit:
		return nil
	case i.market == "spot":
		return badRequest("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
	}
	return badRequest("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit of %.0f allows for the instance bucket that the specified instance type belongs to.", limit)
}
