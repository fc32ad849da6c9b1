# Golden values of ARIMA models from statsmodels: python3 make.py, in this folder,
# after make.R, reads the series and models of arima.json and writes
# statsmodels.json. Made with statsmodels 0.13.5.
import json
import warnings

import numpy as np
from statsmodels.tsa.statespace.sarimax import SARIMAX

warnings.simplefilter("ignore")
with open("arima.json") as f:
    golden = json.load(f)

out = []
for fit in golden["fits"]:
    data = golden["series"][fit["series"]]
    y = np.array([np.nan if v is None else v for v in data["y"]], dtype=float)
    season = fit["season"] if fit["season"] > 1 else 0
    columns = []
    diffs = fit["order"][1] + fit["seasonal"][1]
    if fit["constant"]:
        columns.append(np.ones(len(y)) if diffs == 0 else np.arange(1.0, len(y) + 1))
    columns += [np.array(c) for c in data.get("x", [])]
    x = np.column_stack(columns) if columns else None
    whole = bool(np.isnan(y).any())
    model = SARIMAX(y, exog=x, order=fit["order"], seasonal_order=(*(fit["seasonal"] if season else (0, 0, 0)), season), simple_differencing=not whole)
    start = model.fit(disp=0, maxiter=500)
    best = model.fit(start.params, disp=0, method="bfgs", maxiter=500, gtol=1e-9)
    if best.llf < start.llf:
        best = start
    out.append({"series": fit["series"], "order": fit["order"], "seasonal": fit["seasonal"], "loglik": best.llf, "sigma2": best.params[-1]})
with open("statsmodels.json", "w") as f:
    json.dump(out, f, indent=0)
