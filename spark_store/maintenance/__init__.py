"""Operations on the whole store without Spark: backup, rebuild, verify, index check."""
