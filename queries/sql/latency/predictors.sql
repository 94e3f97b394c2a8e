-- How well do the predictors predict?
-- tables: prediction_error
-- units: bias in error_unit; mape and coverage_90 0 to 1
select predictor, model, tier, prompt_from_tokens, predictions, bias, error_unit, mape, coverage_90
from (select *, row_number() over (partition by predictor, model, tier, tenant_class, prompt_from_tokens order by as_of desc) as place
      from prediction_error)
where place = 1 order by predictor, model, tier, prompt_from_tokens
