package cloud_test

import (
	"maps"
	"testing"

	"skyserve/provision/cloud"
)

// Two replicas of each model in us-east-1, one of them on demand: g6.xlarge has 4 vCPUs.
func TestQuotaNeeds(t *testing.T) {
	got := cloud.QuotaNeeds(parse(t, threeRegions))
	maps.DeleteFunc(got, func(_ cloud.QuotaKey, n float64) bool { return n == 0 })
	want := map[cloud.QuotaKey]float64{
		{Region: "aws/us-east-1", Code: "L-DB2E81BA"}:        8,
		{Region: "aws/us-east-1", Code: "L-3819A6DF"}:        8,
		{Region: "aws/ap-northeast-1", Code: "L-DB2E81BA"}:   8,
		{Region: "gcp/europe-west4", Code: "NVIDIA_L4_GPUS"}: 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
