package agent

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/telemetry"
)

const (
	// gpuFiguresInterval is the interval at which the figures of GPUs are read: nvidia-smi takes about 50 ms a GPU.
	gpuFiguresInterval = 5 * time.Second
	// gpuFiguresTimeout bounds a call of nvidia-smi, which hangs with some failures of a GPU.
	gpuFiguresTimeout = 5 * time.Second
)

// nvidiaSMI is the command that prints the figures of GPUs: one line a GPU, percent, MiB, MiB and degrees Celsius,
// and [N/A] or [Not Supported] for what the GPU does not report
// (https://docs.nvidia.com/deploy/nvidia-smi/index.html).
var nvidiaSMI = []string{"nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total,temperature.gpu", "--format=csv,noheader,nounits"}

// gpuStats reads the figures of the machine's GPUs from nvidia-smi, a name in PATH or a path. Without it there are none.
func gpuStats(ctx context.Context, program string) ([]telemetry.GPUFigures, error) {
	ctx, cancel := context.WithTimeout(ctx, gpuFiguresTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, nvidiaSMI[1:]...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("running nvidia-smi: %w", err)
	}
	return parseGPUStats(string(out))
}

// parseGPUStats parses the output of nvidiaSMI.
func parseGPUStats(text string) ([]telemetry.GPUFigures, error) {
	lines := csv.NewReader(strings.NewReader(text))
	lines.TrimLeadingSpace, lines.FieldsPerRecord = true, 4
	records, err := lines.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading the output of nvidia-smi: %w", err)
	}
	var gpus []telemetry.GPUFigures
	for _, r := range records {
		g := telemetry.GPUFigures{MemoryUsed: mebibytes(r[1]), Memory: mebibytes(r[2]), Temperature: parseBounded(r[3], 200)}
		if percent := parseBounded(r[0], 100); percent != nil {
			share := *percent / 100
			g.Utilisation = &share
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

// parseBounded parses a number from 0 to limit; nil for anything else.
func parseBounded(text string, limit float64) *float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(v >= 0 && v <= limit) {
		return nil
	}
	return &v
}

// mebibytes parses a number of MiB; nil for anything else.
func mebibytes(text string) *int64 {
	v := parseBounded(text, 1<<30)
	if v == nil {
		return nil
	}
	bytes := int64(*v * (1 << 20))
	return &bytes
}

// readGPUStats reads the figures of the GPUs until ctx ends. An error is logged once.
func (a *Agent) readGPUStats(ctx context.Context) {
	lastError := ""
	a.repeat(ctx, gpuFiguresInterval, func() (done bool) {
		gpus, err := a.opts.GPUs.Stats(ctx)
		if ctx.Err() != nil {
			return true
		}
		text := ""
		if err != nil {
			if text = err.Error(); text != lastError {
				a.log.Warn("reading the figures of the GPUs failed", "err", err)
			}
		}
		lastError = text
		a.mu.Lock()
		a.gpuStats = gpus
		a.mu.Unlock()
		return false
	})
}
